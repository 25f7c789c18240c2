// Requests to the server, single and repeated. A poll waits for its answer before the next, pauses while the page is hidden, keeps the
// last data when the server does not answer, and says so. A server that fails is asked less and less often.

const PATIENCE_MS = 20_000;
const REFRESH_SECONDS = 10; // until an answer says otherwise
const REFRESH_SECONDS_MAX = 60;

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const SAYS = {
  401: "Your session has ended. Sign in to Airflow again, then come back to this page.",
  403: "You may not see this. An administrator of Airflow can give your role the right to see plugins and this Dag.",
};

export async function ask(address, options = {}) {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin", headers: { Accept: "application/json" }, signal, ...options });
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? "The server takes too long to answer." : "The server does not answer.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Refused(answer.status, detailOf(body) ?? SAYS[answer.status] ?? `The server answers with status ${answer.status}.`);
}

function detailOf(body) {
  const detail = body?.detail;
  if (typeof detail !== "string" || detail === "Not authenticated") return null;
  return detail;
}

export function post(address) {
  return ask(address, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json" },
    body: "{}",
  });
}

export class Poll {
  // `address` is a function: what is asked for may change. `show(data)` and `tell(poll)` are called after each answer.
  constructor({ address, show, tell }) {
    Object.assign(this, {
      address,
      show,
      tell,
      data: null,
      answeredAt: null,
      error: null,
      seconds: REFRESH_SECONDS,
      failures: 0,
    });
    this.turn = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.now()));
  }

  rest() {
    window.clearTimeout(this.timer);
  }

  // For good: what is under way is not shown either.
  stop() {
    this.turn += 1;
    this.isStopped = true;
    this.rest();
  }

  async now() {
    this.rest();
    if (this.isStopped) return;
    const turn = (this.turn += 1);
    try {
      const data = await ask(this.address());
      if (turn !== this.turn) return; // a newer request is under way
      Object.assign(this, { data, answeredAt: Date.now(), error: null, failures: 0 });
      if (!this.hurried) this.seconds = data.refresh_seconds || REFRESH_SECONDS;
      this.show(data);
    } catch (error) {
      if (turn !== this.turn) return;
      if (!(error instanceof Refused)) console.error(error);
      Object.assign(this, { error, failures: this.failures + 1 });
    }
    this.tell(this);
    if (!document.hidden) this.timer = window.setTimeout(() => this.now(), this.pause());
  }

  pause() {
    return 1000 * Math.min(this.seconds * 2 ** Math.min(this.failures, 4), Math.max(this.seconds, REFRESH_SECONDS_MAX));
  }

  // While something is expected to happen: every `seconds`, whatever the server suggests. Without a number as before.
  hurry(seconds) {
    this.hurried = Boolean(seconds);
    if (seconds) this.seconds = seconds;
    this.now();
  }
}
