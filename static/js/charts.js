/* Charts: the one place that mounts, themes, prints and exports them.

   A chart is <figure data-chart id="..."> with its specification in <script type="application/json"> and an empty
   .chart-canvas (see templates/macros/chart.html, which also says how colours are written). This file draws it on load
   and after every htmx swap, keeps the drawing when a swap brings new numbers for the same id, frees it when the figure
   goes, and draws it again when the theme or the medium changes. */
(function () {
  "use strict";

  var CONFIG = {
    displaylogo: false,
    showSendToCloud: false, // on by default, and it would upload the figure to Plotly's cloud
    plotlyServerURL: "",
    responsive: false, // the observer below also sees a panel that is unfolded, which a window's resize does not
    scrollZoom: false,
    doubleClick: "reset",
    displayModeBar: "hover",
    modeBarButtonsToRemove: ["toImage", "sendDataToCloud", "select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  var PRINT_WIDTH = 680; // px: the printable width of A4 with the margins of app.css
  var EXPORT_SIZE = { width: 1200, height: 700 };
  var TOKEN = /^var\((--[\w-]+)\)(?:\s*\/\s*(\d+(?:\.\d+)?)%)?$/;
  var coarse = window.matchMedia("(pointer: coarse)").matches;

  var mounted = new Map(); // figure id -> {figure, canvas, text, spec}
  var printing = false;
  var probe = null;
  var cache = {};

  // ---- colours ----

  /* The value of a token for the screen's theme, or for light paper. light-dark() is settled by the colour scheme of
     the element that uses it, so the probe only has to claim the wanted one. */
  function token(name, light) {
    var key = name + (light ? "|light" : "");
    if (!(key in cache)) {
      if (!probe) {
        probe = document.createElement("span");
        probe.hidden = true;
        document.body.append(probe);
      }
      probe.style.colorScheme = light ? "light" : "";
      probe.style.color = "";
      probe.style.color = "var(" + name + ")";
      cache[key] = getComputedStyle(probe).color;
    }
    return cache[key];
  }

  function translucent(colour, alpha) {
    var parts = String(colour).match(/[\d.]+/g);
    if (!/^rgb/.test(colour) || !parts) return colour;
    return "rgba(" + parts.slice(0, 3).join(",") + "," + alpha + ")";
  }

  function colour(value, light) {
    if (Array.isArray(value)) return value.map(function (item) { return colour(item, light); });
    if (typeof value !== "string") return value;
    var match = TOKEN.exec(value);
    if (!match) return value;
    var found = token(match[1], light);
    return match[2] ? translucent(found, Number(match[2]) / 100) : found;
  }

  /* A copy in which every colour is one that Plotly knows. Long lists of numbers and text are shared, not copied. */
  function coloured(value, key, light) {
    if (/color/i.test(key)) {
      if (value && typeof value === "object" && !Array.isArray(value)) return walk(value, light);
      return colour(value, light);
    }
    if (Array.isArray(value)) {
      var holdsObjects = value.some(function (item) { return item && typeof item === "object" && !Array.isArray(item); });
      return holdsObjects ? value.map(function (item) { return coloured(item, "", light); }) : value;
    }
    return value && typeof value === "object" ? walk(value, light) : value;
  }

  function walk(object, light) {
    var copy = {};
    Object.keys(object).forEach(function (key) { copy[key] = coloured(object[key], key, light); });
    return copy;
  }

  function merge(under, over) {
    var out = Object.assign({}, under);
    Object.keys(over || {}).forEach(function (key) {
      var value = over[key];
      var both = value && typeof value === "object" && !Array.isArray(value) && out[key] && typeof out[key] === "object";
      out[key] = both ? merge(out[key], value) : value;
    });
    return out;
  }

  // ---- traces and layout ----

  function each(value, change) {
    return Array.isArray(value) ? value.map(change) : change(value);
  }

  /* Colour by resource, and the look of what is bound (outline), expected (translucent) or measured (solid). */
  function dressed(trace, index, light) {
    var meta = trace.meta || {};
    var copy = walk(trace, light);
    var series = ["--chart-mark", "--accent", "--warn", "--info"];
    var base = meta.resource ? token("--resource-" + meta.resource, light) : token(series[index % series.length], light);
    var isLine = (copy.type || "scatter") === "scatter" && /lines/.test(copy.mode || "lines");
    var hasMarks = copy.type !== "heatmap" && copy.type !== "contour" && (!isLine || /markers/.test(copy.mode || ""));

    if (isLine) copy.line = merge({ color: base, width: 2 }, copy.line);
    if (hasMarks) {
      copy.marker = merge({ color: base }, copy.marker);
      var own = copy.marker.color;
      if (meta.kind === "bound") {
        copy.marker.color = each(own, function (c) { return translucent(c, 0.14); });
        copy.marker.line = merge({ color: own, width: 1.5 }, copy.marker.line);
        copy.marker.opacity = copy.marker.opacity || 1;
      } else if (meta.kind === "expected") {
        copy.marker.color = each(own, function (c) { return translucent(c, 0.4); });
        copy.marker.line = merge({ color: own, width: 0 }, copy.marker.line);
      } else {
        copy.marker.line = merge({ color: token("--surface", light), width: copy.type === "bar" ? 0 : 1 }, copy.marker.line);
      }
    }
    if (copy.fill && copy.fill !== "none" && !copy.fillcolor) copy.fillcolor = translucent(copy.line ? copy.line.color : base, 0.22);
    if (copy.type === "box" || copy.type === "violin") copy.line = merge({ color: base, width: 1.5 }, copy.line);
    if (copy.type === "bar" && copy.text && copy.cliponaxis === undefined) copy.cliponaxis = false;
    var ink = token("--ink", light);
    if (copy.type === "bar") {
      copy.outsidetextfont = merge({ color: ink, size: 13 }, copy.textfont || copy.outsidetextfont);
      copy.insidetextfont = merge(
        { color: each(copy.marker.color, function (c) { return readableOn(c, ink); }), size: 13 },
        copy.insidetextfont
      );
    } else {
      copy.textfont = merge({ color: ink, size: 13 }, copy.textfont);
    }
    return copy;
  }

  /* Dark or light text, whichever reads better on a bar; ordinary ink where the paper shows through. */
  function readableOn(fill, ink) {
    var parts = (String(fill).match(/[\d.]+/g) || []).map(Number);
    if (parts.length < 3 || (parts.length > 3 && parts[3] < 0.6)) return ink;
    var linear = parts.slice(0, 3).map(function (part) {
      var share = part / 255;
      return share <= 0.04045 ? share / 12.92 : Math.pow((share + 0.055) / 1.055, 2.4);
    });
    var luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    return luminance > 0.18 ? "#16130f" : "#ffffff";
  }

  function baseLayout(light) {
    var face = getComputedStyle(document.documentElement).fontFamily;
    var text = token("--chart-text", light);
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: face, size: 13, color: text },
      margin: { l: 52, r: 16, t: 10, b: 40 },
      hovermode: "closest",
      dragmode: coarse ? false : "zoom",
      bargap: 0.35,
      hoverlabel: {
        bgcolor: token("--surface", light),
        bordercolor: token("--edge", light),
        font: { family: face, size: 13, color: token("--ink", light) },
        align: "left",
      },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 13 }, itemsizing: "constant", traceorder: "normal", bgcolor: "rgba(0,0,0,0)" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: token("--ink-faint", light), activecolor: token("--accent", light) },
    };
  }

  function baseAxis(light) {
    return {
      automargin: true,
      gridcolor: token("--chart-grid", light),
      zerolinecolor: token("--chart-axis", light),
      zerolinewidth: 1,
      linecolor: token("--chart-axis", light),
      showline: true,
      ticks: "outside",
      ticklen: 4,
      tickcolor: token("--chart-axis", light),
      title: { standoff: 8, font: { size: 13 } },
      tickfont: { size: 13 },
    };
  }

  function themed(spec, light) {
    var own = walk(spec.layout || {}, light);
    var layout = merge(baseLayout(light), own);
    var axes = ["xaxis", "yaxis"].concat(Object.keys(own).filter(function (key) { return /^[xy]axis\d+$/.test(key); }));
    axes.forEach(function (key) {
      var axis = merge(baseAxis(light), own[key]);
      if (axis.type === "log") axis = merge({ dtick: 1, exponentformat: "SI" }, axis); // the grid is decades
      layout[key] = axis;
    });
    layout.annotations = (own.annotations || []).map(function (note) {
      return merge({ font: { size: 13 }, arrowcolor: token("--chart-axis", light), arrowwidth: 1, arrowhead: 0 }, note);
    });
    delete layout.template;
    var data = (spec.data || []).map(function (trace, index) { return dressed(trace, index, light); });
    return { data: data, layout: layout };
  }

  // ---- mounting ----

  function read(figure) {
    var block = figure.querySelector('script[type="application/json"]');
    return block ? block.textContent : "";
  }

  function draw(entry) {
    var canvas = entry.canvas;
    if (!printing && !canvas.clientWidth) return Promise.resolve(); // folded away: drawn when it unfolds
    var figure = themed(entry.spec, printing);
    if (printing) {
      figure.layout.width = PRINT_WIDTH;
      figure.layout.height = canvas.clientHeight || 320;
      figure.layout.autosize = false;
    } else {
      figure.layout.width = canvas.clientWidth;
      figure.layout.height = canvas.clientHeight;
    }
    entry.size = [figure.layout.width, figure.layout.height];
    var config = coarse ? Object.assign({}, CONFIG, { displayModeBar: false }) : CONFIG;
    return Promise.resolve(window.Plotly.react(canvas, figure.data, figure.layout, config)).then(
      function () {
        name(entry);
        spread(canvas);
        if (!entry.listens) {
          entry.listens = true;
          canvas.removeAllListeners("plotly_afterplot");
          canvas.on("plotly_afterplot", function () { spread(canvas); });
        }
      },
      function (error) { failed(entry, error); }
    );
  }

  /* Plotly's drawing has neither role nor name. */
  function name(entry) {
    var title = document.getElementById(entry.canvas.dataset.titleFrom);
    entry.canvas.querySelectorAll("svg.main-svg").forEach(function (svg, index) {
      if (index) {
        svg.setAttribute("aria-hidden", "true");
      } else {
        svg.setAttribute("role", "img");
        svg.setAttribute("aria-label", "Chart. " + (title ? title.textContent : ""));
      }
    });
  }

  /* Labels that would lie on one another are stacked, and kept inside the plot; the specification cannot know the
     sizes that text has here. What finds no free place is hidden: hover and the table still name it. */
  function spread(canvas) {
    var plot = canvas.querySelector(".cartesianlayer .bg, .plotbg rect, .nsewdrag");
    var frame = canvas.getBoundingClientRect();
    var area = plot ? plot.getBoundingClientRect() : frame;
    canvas.querySelectorAll(".bartext-outside").forEach(function (label) {
      label.style.translate = "";
      var box = label.getBoundingClientRect();
      var over = Math.min(0, frame.right - 2 - box.right);
      if (over) label.style.translate = over + "px 0";
    });
    var labels = Array.from(canvas.querySelectorAll(".annotation-text-g, .textpoint text"));
    if (!labels.length || labels.length > 60 || !frame.width) return;
    var placed = [];
    labels.forEach(function (label) {
      label.style.translate = "";
      label.style.visibility = "";
      var box = label.getBoundingClientRect();
      if (!box.width) return;
      if (box.width > frame.right - area.left - 6) box = shortened(label, frame.right - area.left - 6);
      // Labels outside the plot (above a bar, beside an axis) stand where they were put.
      var beside = box.bottom <= area.top + 2 || box.top >= area.bottom - 2;
      var right = Math.max(0, area.left + 4 - box.left) + Math.min(0, frame.right - 2 - box.right);
      if (beside) right = Math.max(0, frame.left - box.left) + Math.min(0, frame.right - box.right);
      var line = box.height + 1;
      var steps = [0, 1, 2, 3, 4, -1, -2, 5, -3, 6];
      for (var i = 0; i < steps.length; i += 1) {
        var down = steps[i] * line;
        var moved = { left: box.left + right, right: box.right + right, top: box.top + down, bottom: box.bottom + down };
        var inside = moved.top >= frame.top && moved.bottom <= (beside ? frame.bottom : area.bottom);
        var free = inside && placed.every(function (other) {
          return moved.right <= other.left || moved.left >= other.right || moved.bottom <= other.top + 1 || moved.top >= other.bottom - 1;
        });
        if (free) {
          placed.push(moved);
          if (right || down) label.style.translate = right + "px " + down + "px";
          return;
        }
      }
      label.style.visibility = "hidden";
    });
  }

  /* A label wider than the room ends in an ellipsis; hover and the table have all of it. */
  function shortened(label, room) {
    var text = label.querySelector("text") || label;
    var words = text.textContent;
    while (!text.firstElementChild && words.length > 8 && label.getBoundingClientRect().width > room) {
      words = words.slice(0, -2).trimEnd();
      text.textContent = words + "\u2026";
    }
    return label.getBoundingClientRect();
  }

  function failed(entry, error) {
    var note = document.createElement("p");
    note.className = "chart-failed";
    note.textContent = "This chart could not be drawn. Its numbers are in the table below.";
    entry.canvas.replaceChildren(note);
    console.error("chart " + entry.figure.id + ":", error);
  }

  var sizes = new ResizeObserver(function (records) {
    if (printing) return;
    records.forEach(function (record) {
      var canvas = record.target;
      var entry = Array.from(mounted.values()).find(function (item) { return item.canvas === canvas; });
      if (!entry || !canvas.clientWidth) return;
      if (entry.size && entry.size[0] === canvas.clientWidth && entry.size[1] === canvas.clientHeight) return;
      draw(entry);
    });
  });

  function mount(figure) {
    var canvas = figure.querySelector(".chart-canvas");
    var text = read(figure);
    if (!canvas || !text) return;
    var known = mounted.get(figure.id);
    if (known && known.figure === figure && known.canvas === canvas) {
      if (known.text === text) return;
    } else if (known) {
      // A swap brought the same chart with new numbers: its drawing moves over, so nothing blinks.
      known.canvas.dataset.titleFrom = canvas.dataset.titleFrom;
      canvas.replaceWith(known.canvas);
      canvas = known.canvas;
    } else {
      canvas.replaceChildren();
    }
    var entry = { figure: figure, canvas: canvas, text: text, spec: null, size: null };
    try {
      entry.spec = JSON.parse(text);
    } catch (error) {
      failed(entry, error);
      return;
    }
    mounted.set(figure.id, entry);
    var exports = figure.querySelector(".chart-exports");
    if (exports) exports.hidden = false;
    draw(entry);
    sizes.observe(canvas);
  }

  function scan() {
    if (!window.Plotly) return;
    document.querySelectorAll("figure[data-chart]").forEach(mount);
    mounted.forEach(function (entry, id) {
      if (entry.figure.isConnected && entry.canvas.isConnected) return;
      sizes.unobserve(entry.canvas);
      window.Plotly.purge(entry.canvas);
      mounted.delete(id);
    });
  }

  function redraw() {
    cache = {};
    mounted.forEach(draw);
  }

  function print(on) {
    if (printing === on) return;
    printing = on;
    redraw();
  }

  // ---- export ----

  function download(name, href) {
    var link = document.createElement("a");
    link.href = href;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
  }

  function downloadText(name, type, text) {
    var href = URL.createObjectURL(new Blob([text], { type: type }));
    download(name, href);
    setTimeout(function () { URL.revokeObjectURL(href); }, 10000);
  }

  /* A spreadsheet would run a cell that starts like a formula; plain numbers may keep their sign. */
  function csvCell(value) {
    var text = String(value);
    if (/^[=+\-@\t\r]/.test(text) && !/^[+-]?[\d.]+(e[+-]?\d+)?$/i.test(text)) text = "'" + text;
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }

  function words(element) {
    return element.textContent.replace(/\s+/g, " ").trim();
  }

  function tableRows(table) {
    return Array.from(table.rows).map(function (row) {
      return Array.from(row.cells).map(function (cell) {
        if (row.parentElement.tagName === "THEAD" && cell.dataset.unit) {
          var unit = cell.querySelector(".unit");
          var label = words(cell);
          if (unit) label = label.slice(0, label.length - words(unit).length).trim();
          return label + " [" + cell.dataset.unit + "]";
        }
        if (cell.dataset.value !== undefined) return cell.dataset.value;
        if (cell.querySelector(".fig-none")) return "";
        var note = cell.querySelector(".cell-note");
        if (!note) return words(cell);
        var aside = words(note);
        return words(cell).slice(0, -aside.length).trim() + " (" + aside + ")";
      });
    });
  }

  function traceRows(spec) {
    var rows = [["series", "x", "y"]];
    (spec.data || []).forEach(function (trace, index) {
      var xs = trace.x || [], ys = trace.y || [];
      for (var i = 0; i < Math.max(xs.length, ys.length); i += 1) {
        rows.push([trace.name || "series " + (index + 1), xs[i] === undefined ? "" : xs[i], ys[i] === undefined ? "" : ys[i]]);
      }
    });
    return rows;
  }

  function fileName(entry, extension) {
    return "bytebound-" + entry.figure.id + "." + extension;
  }

  function exportImage(entry, format) {
    var figure = themed(entry.spec, true);
    var head = words(entry.figure.querySelector(".chart-title") || entry.figure);
    var caption = entry.figure.querySelector(".chart-caption");
    var escape = function (text) { return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); };
    figure.layout.paper_bgcolor = "#ffffff";
    figure.layout.width = EXPORT_SIZE.width;
    figure.layout.height = EXPORT_SIZE.height;
    figure.layout.margin = merge(figure.layout.margin, { t: 116, l: 80, r: 40, b: 60 });
    figure.layout.legend = merge(figure.layout.legend, { x: 1, xanchor: "right", y: 1.01, yanchor: "bottom" });
    if (entry.spec.meta && entry.spec.meta.legend) figure.layout.showlegend = true;
    figure.layout.title = {
      text: escape(head) + (caption ? "<br><sub>" + escape(words(caption)) + "</sub>" : ""),
      x: 0.02, xanchor: "left", y: 0.97, yanchor: "top", font: { size: 18, color: token("--ink", true) },
    };
    var options = { format: format, width: EXPORT_SIZE.width, height: EXPORT_SIZE.height, scale: format === "png" ? 2 : 1 };
    return window.Plotly.toImage(figure, options).then(function (href) { download(fileName(entry, format), href); });
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("[data-export]");
    var figure = button && button.closest("figure[data-chart]");
    var entry = figure && mounted.get(figure.id);
    if (!entry) return;
    var kind = button.dataset.export;
    if (kind === "json") {
      downloadText(fileName(entry, "json"), "application/json", JSON.stringify(entry.spec, null, 2) + "\n");
    } else if (kind === "csv") {
      var table = figure.querySelector(".chart-table table");
      var rows = table ? tableRows(table) : traceRows(entry.spec);
      var text = rows.map(function (row) { return row.map(csvCell).join(","); }).join("\r\n") + "\r\n";
      downloadText(fileName(entry, "csv"), "text/csv", text);
    } else {
      exportImage(entry, kind).catch(function (error) {
        window.bytebound.notify("error", "The picture could not be made: " + error.message);
      });
    }
  });

  // ---- when to draw ----

  document.addEventListener("htmx:before:settle", scan); // content is in place, nothing painted yet
  document.addEventListener("htmx:after:swap", scan);
  document.addEventListener("bytebound:theme", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", function () { print(true); });
  window.addEventListener("afterprint", function () { print(false); });
  window.matchMedia("print").addEventListener("change", function (event) {
    printing = event.matches;
    redraw();
  });
  scan();
})();
