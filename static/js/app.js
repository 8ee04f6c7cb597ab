/* What every page shares: theme, keys, menus, notes on figures, sorting, copying, the comparison tray, uploads, and how
   htmx requests show. No page-specific code, and nothing that the content security policy would stop: no inline
   handlers, no evaluated text. Pages work for reading without it. */
(function () {
  "use strict";

  var root = document.documentElement;
  var bytebound = (window.bytebound = window.bytebound || {});

  function all(selector, within) {
    return Array.from((within || document).querySelectorAll(selector));
  }

  function element(tag, className, text) {
    var made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function store(key, value) {
    try {
      if (value === undefined) return localStorage.getItem(key);
      if (value === null) localStorage.removeItem(key);
      else localStorage.setItem(key, value);
    } catch (error) {
      /* storage is switched off or full: the page goes on without */
    }
    return null;
  }

  // ---- notes at the edge of the window ----

  bytebound.notify = function (severity, text) {
    var box = document.querySelector("[data-notices]");
    var note = element("div", "block block-" + severity);
    var close = element("button", "link", "Close");
    close.type = "button";
    close.addEventListener("click", function () { note.remove(); });
    note.append(element("p", "", text), close);
    all(".block", box).slice(0, -2).forEach(function (old) { old.remove(); });
    box.append(note);
    if (severity === "good") setTimeout(function () { note.remove(); }, 4000);
  };

  // ---- theme ----

  function showTheme() {
    var theme = root.dataset.theme || "auto";
    all("[data-theme-set]").forEach(function (button) {
      button.setAttribute("aria-pressed", String(button.dataset.themeSet === theme));
    });
  }

  function setTheme(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    store("bytebound.theme", theme === "auto" ? null : theme);
    showTheme();
    document.dispatchEvent(new CustomEvent("bytebound:theme"));
  }

  // ---- copying ----

  function copy(button) {
    var text = button.dataset.copy;
    if (text === undefined || text.startsWith("#")) {
      var from = document.getElementById((text || "").slice(1));
      text = from ? ("value" in from ? from.value : from.textContent) : text || "";
    }
    var word = button.querySelector("span") || button;
    var before = button.dataset.word || (button.dataset.word = word.textContent);
    var done = function () {
      word.textContent = "Copied";
      setTimeout(function () { word.textContent = before; }, 1600);
    };
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(text).then(done, function () { copyBySelection(text, done); });
    } else {
      copyBySelection(text, done);
    }
  }

  /* Plain http on another machine has no clipboard API. */
  function copyBySelection(text, done) {
    var area = element("textarea", "visually-hidden");
    area.value = text;
    document.body.append(area);
    area.select();
    var copied = document.execCommand("copy");
    area.remove();
    if (copied) done();
    else bytebound.notify("warning", "The browser did not allow copying. Select the text and copy it by hand.");
  }

  // ---- sorting ----

  var orders = {}; // table id -> {column, direction}, so that a swapped-in table keeps its order

  function sortKey(row, column, numeric) {
    var cell = row.cells[column];
    if (!cell) return null;
    if (cell.dataset.value !== undefined && cell.dataset.value !== "") {
      var value = Number(cell.dataset.value);
      if (!Number.isNaN(value)) return numeric ? value : cell.dataset.value;
    }
    if (cell.querySelector(".fig-none") || !cell.textContent.trim()) return null;
    var text = cell.textContent.trim();
    if (!numeric) return text;
    var plain = parseFloat(text.replace(/[,\s]/g, "").replace("\u2212", "-"));
    return Number.isNaN(plain) ? null : plain;
  }

  function sortTable(table, column, direction) {
    var head = table.tHead.rows[0].cells[column];
    var button = head && head.querySelector("button.sort");
    if (!button || !table.tBodies[0]) return;
    var numeric = button.dataset.sort === "number";
    var sign = direction === "ascending" ? 1 : -1;
    var keyed = Array.from(table.tBodies[0].rows).map(function (row, index) {
      return { row: row, index: index, key: sortKey(row, column, numeric) };
    });
    keyed.sort(function (a, b) {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.index - b.index; // unknown last
      var order = numeric ? a.key - b.key : a.key.localeCompare(b.key, undefined, { numeric: true, sensitivity: "base" });
      return sign * order || a.index - b.index;
    });
    table.tBodies[0].append.apply(table.tBodies[0], keyed.map(function (item) { return item.row; }));
    all("thead th", table).forEach(function (cell) { cell.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", direction);
    if (table.id) orders[table.id] = { column: column, direction: direction };
  }

  function sortBy(button) {
    var head = button.closest("th");
    var first = button.dataset.sort === "number" ? "descending" : "ascending";
    var now = head.getAttribute("aria-sort");
    var next = !now ? first : now === "ascending" ? "descending" : "ascending";
    sortTable(head.closest("table"), head.cellIndex, next);
  }

  // ---- comparison tray ----

  function tray() {
    try {
      var items = JSON.parse(store("bytebound.tray") || "[]");
      return Array.isArray(items) ? items.filter(function (item) { return item && item.kind; }) : [];
    } catch (error) {
      return [];
    }
  }

  function trayKey(item) {
    return item.kind === "run" ? "run:" + item.id : item.kind + ":" + JSON.stringify(item.request);
  }

  function inTray(item) {
    return tray().some(function (other) { return trayKey(other) === trayKey(item); });
  }

  function setTray(items) {
    store("bytebound.tray", items.length ? JSON.stringify(items) : null);
    showTray();
    document.dispatchEvent(new CustomEvent("bytebound:tray", { detail: items }));
  }

  function showTray() {
    var items = tray();
    var count = document.querySelector("[data-tray-count]");
    if (count) {
      count.textContent = String(items.length);
      count.classList.toggle("count-some", items.length > 0);
      count.closest("summary").setAttribute("aria-label", "Comparison tray, " + items.length + (items.length === 1 ? " item" : " items"));
      var list = document.querySelector("[data-tray-items]");
      list.replaceChildren.apply(list, items.map(function (item) {
        var line = element("li");
        var remove = element("button", "link", "Remove");
        remove.type = "button";
        remove.setAttribute("aria-label", "Remove " + (item.label || item.id));
        remove.dataset.trayRemove = trayKey(item);
        line.append(element("span", "", item.label || item.id || item.kind), remove);
        return line;
      }));
      document.querySelector("[data-tray-empty]").hidden = items.length > 0;
      document.querySelector("[data-tray-value]").value = JSON.stringify(items);
      all("[data-tray-form] button").forEach(function (button) { button.disabled = !items.length; });
    }
    all("[data-tray-add]").forEach(function (button) {
      var present = inTray(JSON.parse(button.dataset.trayAdd));
      var word = button.querySelector("span") || button;
      button.dataset.word = button.dataset.word || word.textContent;
      button.setAttribute("aria-pressed", String(present));
      word.textContent = present ? "In comparison" : button.dataset.word;
    });
  }

  function toggleTray(button) {
    var item = JSON.parse(button.dataset.trayAdd);
    var others = tray().filter(function (other) { return trayKey(other) !== trayKey(item); });
    setTray(inTray(item) ? others : others.concat([item]));
  }

  // ---- uploads ----

  function fileSize(bytes) {
    return bytes >= 1048576 ? (bytes / 1048576).toFixed(1) + "\u202fMiB" : Math.max(1, Math.round(bytes / 1024)) + "\u202fKiB";
  }

  function showFiles(form) {
    var input = form.querySelector(".drop-input");
    var state = form.querySelector("[data-drop-state]");
    var list = element("ul", "drop-files");
    Array.from(input.files).forEach(function (file) {
      var line = element("li");
      line.append(element("span", "", file.name), element("span", "quiet", fileSize(file.size)));
      list.append(line);
    });
    form.classList.toggle("drop-filled", input.files.length > 0);
    state.replaceChildren(list);
    // Nothing else to fill in: the files go at once.
    if (input.files.length && !form.querySelector(".drop-fields")) send(form);
  }

  function send(form) {
    var input = form.querySelector(".drop-input");
    var state = form.querySelector("[data-drop-state]");
    var limit = Number(form.dataset.maxBytes || 0);
    var total = Array.from(input.files).reduce(function (sum, file) { return sum + file.size; }, 0);
    if (!input.files.length || form.dataset.sending) return;
    var most = Number(form.dataset.maxFiles || 0);
    if (most && input.files.length > most) {
      problem(state, "Those are " + input.files.length + " files; at most " + most + " are accepted at once. Pack them into a zip archive, or send them in parts.");
      return;
    }
    if (limit && total > limit) {
      problem(state, "That is " + fileSize(total) + "; at most " + fileSize(limit) + " are accepted at once.");
      return;
    }
    var request = new XMLHttpRequest();
    var bar = element("progress");
    var line = element("p", "quiet", "Sending " + fileSize(total) + " \u2026 ");
    var stop = element("button", "link", "Cancel");
    bar.max = 1;
    bar.value = 0;
    bar.setAttribute("aria-label", "Upload");
    stop.type = "button";
    stop.addEventListener("click", function () { request.abort(); });
    line.append(stop);
    state.replaceChildren(line, bar);
    form.dataset.sending = "yes";
    form.setAttribute("aria-busy", "true");

    request.upload.addEventListener("progress", function (event) {
      if (event.lengthComputable) bar.value = event.loaded / event.total;
    });
    request.upload.addEventListener("load", function () {
      bar.removeAttribute("value");
      line.firstChild.textContent = "Reading \u2026 ";
    });
    request.addEventListener("load", function () {
      var redirect = request.getResponseHeader("HX-Redirect");
      var landed = request.responseURL ? new URL(request.responseURL) : null;
      var asked = new URL(form.action, location.href);
      if (redirect) {
        location.assign(redirect);
      } else if (request.status < 400 && landed && landed.pathname !== asked.pathname) {
        location.assign(landed.href);
      } else {
        state.innerHTML = request.responseText;
        if (window.htmx) window.htmx.process(state);
        arrived(state);
        if (request.status < 400) reset(form);
      }
    });
    request.addEventListener("error", function () {
      problem(state, "The upload was cut off: the file may be larger than the server accepts, or the connection broke. Nothing was stored.");
    });
    request.addEventListener("abort", function () {
      state.replaceChildren(element("p", "quiet", "Cancelled. Nothing was stored."));
    });
    request.addEventListener("loadend", function () {
      delete form.dataset.sending;
      form.removeAttribute("aria-busy");
      input.value = "";
      form.classList.remove("drop-filled");
    });
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true");
    request.setRequestHeader("HX-Request-Type", "partial");
    request.setRequestHeader("Accept", "text/html");
    request.send(new FormData(form));
  }

  function reset(form) {
    var keep = form.querySelector("[data-drop-state]").cloneNode(true);
    form.reset();
    form.querySelector("[data-drop-state]").replaceWith(keep);
  }

  function problem(state, text) {
    var box = element("div", "block block-error");
    box.setAttribute("role", "alert");
    box.append(element("p", "", text));
    state.replaceChildren(box);
  }

  function carriesFiles(event) {
    return event.dataTransfer && Array.from(event.dataTransfer.types).includes("Files");
  }

  var over = null;
  function dropForm(event) {
    return event.target.closest && event.target.closest("form[data-drop]") ? event.target.closest("form[data-drop]") : document.querySelector("form[data-drop]");
  }
  function leave() {
    if (over) over.classList.remove("drop-over");
    over = null;
  }

  // A file dropped beside the zone still lands in it, instead of replacing the page.
  document.addEventListener("dragover", function (event) {
    var form = carriesFiles(event) && dropForm(event);
    if (!form) return;
    event.preventDefault();
    if (over !== form) leave();
    over = form;
    form.classList.add("drop-over");
  });
  document.addEventListener("dragleave", function (event) {
    if (!event.relatedTarget) leave();
  });
  document.addEventListener("drop", function (event) {
    var form = carriesFiles(event) && dropForm(event);
    leave();
    if (!form) return;
    event.preventDefault();
    var input = form.querySelector(".drop-input");
    droppedFiles(event.dataTransfer).then(function (files) {
      var carried = new DataTransfer();
      files.forEach(function (file) { carried.items.add(file); });
      input.files = carried.files;
      showFiles(form);
    });
  });

  // Files as they were dropped, and those in dropped folders, by name. The entries must be asked for before any wait.
  function droppedFiles(transfer) {
    var plain = Array.from(transfer.files);
    var entries = Array.from(transfer.items || [])
      .map(function (item) { return item.webkitGetAsEntry ? item.webkitGetAsEntry() : null; })
      .filter(Boolean);
    if (!entries.some(function (entry) { return entry.isDirectory; })) return Promise.resolve(plain);
    return Promise.all(entries.map(filesIn)).then(function (lists) { return lists.flat(); });
  }

  function filesIn(entry) {
    return new Promise(function (resolve) {
      if (entry.isFile) {
        entry.file(function (file) { resolve(file.name.charAt(0) === "." ? [] : [file]); }, function () { resolve([]); });
        return;
      }
      var reader = entry.createReader();
      var found = [];
      (function more() {
        reader.readEntries(function (some) {
          if (some.length) {
            found = found.concat(some);
            more();
            return;
          }
          found.sort(function (a, b) { return a.name.localeCompare(b.name, undefined, { numeric: true }); });
          Promise.all(found.map(filesIn)).then(function (lists) { resolve(lists.flat()); });
        }, function () { resolve([]); });
      })();
    });
  }

  // ---- the note on a figure ----

  var tip = null;
  var tipFor = null;
  var tipTimer = 0;

  function showTip(figure) {
    clearTimeout(tipTimer);
    if (tipFor === figure) return;
    hideTip();
    if (!figure.dataset.exact && !figure.dataset.origin) return;
    if (figure.title) {
      figure.dataset.title = figure.title; // its text is in the note; both at once would say it twice
      figure.removeAttribute("title");
    }
    tip = tip || element("div", "tip");
    tip.id = "figure-note";
    tip.setAttribute("role", "tooltip");
    tip.replaceChildren();
    if (figure.dataset.exact) tip.append(element("div", "tip-exact", figure.dataset.exact));
    if (figure.dataset.origin) {
      var line = element("div", "tip-origin", figure.dataset.origin);
      if (figure.dataset.originUrl) {
        var link = element("a", "", "Open the source");
        link.href = figure.dataset.originUrl;
        link.rel = "noreferrer";
        line.append(element("br"), link);
      }
      tip.append(line);
    }
    document.body.append(tip);
    if (tip.showPopover) {
      tip.popover = "manual"; // top layer: above dialogs, and not cut by a scrolling table
      tip.showPopover();
    }
    var box = figure.getBoundingClientRect();
    var own = tip.getBoundingClientRect();
    var below = box.bottom + 6 + own.height < window.innerHeight;
    tip.style.left = Math.max(8, Math.min(box.left, window.innerWidth - own.width - 8)) + "px";
    tip.style.top = (below ? box.bottom + 6 : Math.max(8, box.top - own.height - 6)) + "px";
    figure.setAttribute("aria-describedby", "figure-note");
    tipFor = figure;
  }

  function hideTip() {
    clearTimeout(tipTimer);
    if (tipFor) tipFor.removeAttribute("aria-describedby");
    if (tip) tip.remove();
    tipFor = null;
  }

  function hideTipSoon() {
    clearTimeout(tipTimer);
    tipTimer = setTimeout(hideTip, 220); // time to reach the link in it
  }

  document.addEventListener("pointerover", function (event) {
    var figure = event.target.closest(".fig");
    if (figure) showTip(figure);
    else if (tip && tip.contains(event.target)) clearTimeout(tipTimer);
    else if (tipFor) hideTipSoon();
  });
  document.addEventListener("focusin", function (event) {
    var figure = event.target.closest(".fig");
    if (figure) showTip(figure);
    else if (tipFor && !(tip && tip.contains(event.target))) hideTip();
  });
  document.addEventListener("scroll", function (event) {
    if (tipFor && !(tip && tip.contains(event.target))) hideTip();
  }, true);

  // ---- clicks and keys, by delegation, so that swapped-in parts need no wiring ----

  document.addEventListener("click", function (event) {
    var target = event.target;
    var button = target.closest("button, [data-copy]");
    all("details.menu[open]").forEach(function (menu) {
      if (!menu.contains(target)) menu.open = false;
    });
    if (!button) return;
    if (button.matches("button.sort")) sortBy(button);
    else if (button.dataset.themeSet) setTheme(button.dataset.themeSet);
    else if (button.dataset.copy !== undefined) copy(button);
    else if (button.dataset.trayAdd) toggleTray(button);
    else if (button.dataset.trayRemove) setTray(tray().filter(function (item) { return trayKey(item) !== button.dataset.trayRemove; }));
    else if (button.dataset.trayClear !== undefined) setTray([]);
    else if (button.dataset.openDialog) openDialog(button.dataset.openDialog);
  });

  function openDialog(id) {
    var dialog = document.getElementById(id);
    if (dialog && dialog.showModal && !dialog.open) dialog.showModal();
  }

  function typing(target) {
    return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !/^(checkbox|radio|button|submit)$/.test(target.type);
  }

  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") {
      hideTip();
      all("[data-notices] .block").forEach(function (note) { note.remove(); });
      all("details.menu[open]").forEach(function (menu) {
        menu.open = false;
        if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
      });
      return;
    }
    if (event.key === "Enter" && event.target.matches(".fig[data-origin-url]")) {
      location.assign(event.target.dataset.originUrl);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "/") {
      var search = document.getElementById("site-search");
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    } else if (event.key === "?") {
      event.preventDefault();
      openDialog("keys");
    }
  });

  document.addEventListener("focusin", function (event) {
    if (event.target.matches("input[data-select]")) event.target.select();
  });

  document.addEventListener("change", function (event) {
    if (event.target.matches("form[data-drop] .drop-input")) showFiles(event.target.form);
  });

  // ---- tabs: an answer that replaces them brings the first one chosen ----

  var chosenTabs = {}; // name of a set of tabs -> value of the chosen one

  document.addEventListener("change", function (event) {
    if (event.target.matches(".tab-radio")) chosenTabs[event.target.name] = event.target.value;
  });

  function keepTabs() {
    all(".tab-radio").forEach(function (tab) {
      if (chosenTabs[tab.name] === tab.value) tab.checked = true;
    });
  }

  document.addEventListener("htmx:before:settle", keepTabs); // in place, nothing painted yet

  document.addEventListener("submit", function (event) {
    if (!event.target.matches("form[data-drop]")) return;
    event.preventDefault();
    send(event.target);
  });

  // ---- htmx ----

  // A request that overtakes another ends the older one later than it began itself, so they are counted per region.
  var underway = new WeakMap(); // target -> number of requests
  var counted = new WeakMap(); // request context -> target

  document.addEventListener("htmx:before:request", function (event) {
    var target = event.detail.ctx && event.detail.ctx.target;
    if (!target || !target.setAttribute || target === document.body || counted.has(event.detail.ctx)) return;
    counted.set(event.detail.ctx, target);
    underway.set(target, (underway.get(target) || 0) + 1);
    target.setAttribute("aria-busy", "true");
  });
  document.addEventListener("htmx:finally:request", function (event) {
    var target = event.detail.ctx && counted.get(event.detail.ctx);
    if (!target) return;
    counted.delete(event.detail.ctx);
    underway.set(target, underway.get(target) - 1);
    if (!underway.get(target)) target.removeAttribute("aria-busy");
  });
  document.addEventListener("htmx:error", function (event) {
    if (event.detail.ctx) {
      bytebound.notify("warning", "The server did not answer. What is shown is the last result; try again in a moment.");
    }
  });
  document.addEventListener("htmx:after:swap", function () {
    arrived(document);
  });

  // ---- what new content needs ----

  // Only a box that really scrolls sideways is a scroll box, and a stop of the Tab key.
  var boxes = new ResizeObserver(function (records) {
    records.forEach(function (record) {
      var box = record.target;
      if (!box.clientWidth) return; // folded away: seen again when it unfolds
      var scrolls = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle("table-scrolls", scrolls);
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    });
  });

  function arrived(within) {
    showTray();
    all("table[id]", within).forEach(function (table) {
      var order = orders[table.id];
      if (order && table.tHead && !table.querySelector("[aria-sort]")) sortTable(table, order.column, order.direction);
    });
    all(".table-box", within).forEach(function (box) { boxes.observe(box); });
    // A refused field takes the focus, unless somebody is writing elsewhere.
    var wrong = document.querySelector("[data-focus-error], [aria-invalid='true']");
    if (within === document && wrong && !typing(document.activeElement) && !wrong.dataset.seen) {
      wrong.dataset.seen = "yes";
      wrong.focus({ preventScroll: false });
    }
  }

  // On phones the controls start folded under their summary; on wide screens they have no summary to unfold them.
  var wide = window.matchMedia("(min-width: 64em)");
  function foldSheets() {
    all("details[data-sheet]").forEach(function (sheet) {
      sheet.open = wide.matches || sheet.querySelector(".field-error:not(:empty)") !== null;
      sheet.dataset.ready = "yes";
    });
  }
  wide.addEventListener("change", foldSheets);
  window.addEventListener("storage", function (event) {
    if (event.key === "bytebound.tray") showTray();
  });
  window.addEventListener("resize", function () { hideTip(); });

  all("[data-theme-choice], [data-open-dialog]").forEach(function (part) { part.hidden = false; });
  all("[data-print-url]").forEach(function (place) { place.textContent = location.href; });
  // On phones the bar of areas is wider than the window.
  all(".areas [aria-current]").forEach(function (area) {
    area.parentElement.scrollLeft = area.offsetLeft - (area.parentElement.clientWidth - area.offsetWidth) / 2;
  });
  showTheme();
  foldSheets();
  arrived(document);
})();
