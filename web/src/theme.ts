// Dark or light: as the system says, unless its user says otherwise here.

const STORED = "gpushare.theme";
export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

let theme: Theme = stored();

const listeners = new Set<() => void>();
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => tell());

export function chosen(): Theme {
  return theme;
}

export function choose(wanted: Theme): void {
  theme = wanted;
  try {
    localStorage.setItem(STORED, theme);
  } catch {
    // a report in the frame of another page has no storage
  }
  tell();
}

function stored(): Theme {
  try {
    const found = localStorage.getItem(STORED);
    return THEMES.find((one) => one === found) ?? "auto";
  } catch {
    return "auto";
  }
}

export function show(): void {
  const dark = theme === "dark" || (theme === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function tell(): void {
  show();
  for (const listener of listeners) listener();
}

export function onTheme(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
