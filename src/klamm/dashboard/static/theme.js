// Light or dark: the system's choice until the reader makes another.

export function themeButton(button, onChange) {
  const stored = localStorage.getItem("klamm-theme");
  if (stored) document.documentElement.dataset.theme = stored;
  button.addEventListener("click", () => {
    const isDark = getComputedStyle(document.documentElement).getPropertyValue("--scheme").trim() === "dark";
    document.documentElement.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("klamm-theme", document.documentElement.dataset.theme);
    onChange();
  });
}
