// The search of this site runs in a Worker, which browsers do not start for a page that was opened from a folder. There the worker's
// script runs in a hidden frame instead, with the few things that it asks of its surroundings: postMessage, onmessage, importScripts.
(() => {
  if (window.location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const begin = () => this.begin(new URL(address, document.baseURI).href);
      if (document.body) begin();
      else document.addEventListener("DOMContentLoaded", begin);
    }

    begin(source) {
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const load = (url) =>
        new Promise((done, failed) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: failed });
          inner.document.body.append(script);
        });
      // Scripts of a worker are there when importScripts returns; here they come one after the other, and it can be waited for.
      inner.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => load(url)), Promise.resolve());
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      load(source).then(
        () => {
          this.inner = inner;
          for (const data of this.waiting.splice(0)) this.postMessage(data);
        },
        (error) => this.dispatchEvent(new ErrorEvent("error", { error })),
      );
    }

    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = FrameWorker; // by this name the search's own script knows that it is in a frame
  window.Worker = FrameWorker;
})();
