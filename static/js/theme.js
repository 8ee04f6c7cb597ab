/* Runs before the first paint: marks that scripts run, and applies the theme chosen on this device. */
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var theme = localStorage.getItem("bytebound.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (error) {
    /* storage is switched off: the system's theme it is */
  }
})();
