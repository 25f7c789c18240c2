// Light and dark as Airflow has them, live: its pages and ours share an origin, so we look at the class on its <html>.
// Opened on its own, a page follows what Airflow's switch last stored, and then what the system prefers.

const STORED = "theme"; // where Airflow's own theme switch keeps its choice: light, dark or system
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function frameRoot() {
  try {
    return window.parent !== window ? window.parent.document.documentElement : null;
  } catch {
    return null; // framed by a page of another origin
  }
}

function stored() {
  try {
    return window.localStorage.getItem(STORED);
  } catch {
    return null; // storage is switched off
  }
}

export function isDark(root, choice, systemIsDark) {
  if (root?.classList.contains("dark")) return true;
  if (root?.classList.contains("light")) return false;
  if (choice === "dark" || choice === "light") return choice === "dark";
  return systemIsDark;
}

export function followTheme() {
  const root = frameRoot();
  const apply = () => document.documentElement.classList.toggle("dark", isDark(root, stored(), prefersDark.matches));
  apply();
  if (root) new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class"] });
  prefersDark.addEventListener("change", apply);
  window.addEventListener("storage", apply);
}
