// Keys for what links and fields do; the page works without it. No markup is made here, of nobody's text.
"use strict";

const KEYS = {
  ArrowLeft: "back",
  ArrowRight: "forth",
  g: "step",
  s: "source",
  "?": "keys",
};
const OFF = "streamdata: keys are off";
const FOCUS = "streamdata: focus";

// Where a key has a meaning of its own: it moves in a field, or scrolls a box.
const takesKeys = (element) => element.closest("input, select, textarea, [tabindex='0'], [contenteditable]") !== null;

const use = (element) => {
  if (element instanceof HTMLDetailsElement) {
    element.open = !element.open;
    element.querySelector("summary").focus();
  } else if (element instanceof HTMLAnchorElement) {
    element.focus();
    element.click();
  } else {
    element.focus();
    element.select?.();
  }
};

const onKey = (event) => {
  if (event.key === "Escape") {
    document.activeElement.blur();
  }
  const isPlain = !event.ctrlKey && !event.altKey && !event.metaKey;
  const element = isPlain && KEYS[event.key] && document.getElementById(KEYS[event.key]);
  if (element && !localStorage.getItem(OFF) && !takesKeys(event.target)) {
    event.preventDefault();
    use(element);
  }
};

// A screen reader goes on where it was, and hears what is new: a region that is filled after the page has come.
const onLoad = () => {
  const status = document.getElementById("status");
  const focused = document.getElementById(sessionStorage.getItem(FOCUS) ?? "");
  sessionStorage.removeItem(FOCUS);
  focused?.focus({ preventScroll: true });
  if (status) {
    status.textContent = status.dataset.text;
  }
  const switched = document.getElementById("keys-on");
  switched.checked = !localStorage.getItem(OFF);
  switched.addEventListener("change", () =>
    switched.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "yes"),
  );
};

addEventListener("beforeunload", () => sessionStorage.setItem(FOCUS, document.activeElement?.id ?? ""));
addEventListener("keydown", onKey);
document.addEventListener("DOMContentLoaded", onLoad);
