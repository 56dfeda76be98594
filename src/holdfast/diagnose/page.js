"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const light = ["#1b6ca8", "#d1495b", "#3a7d44", "#8e5ea2", "#c26a10", "#4d4d4d"];
  const night = ["#6db5ec", "#ff8b98", "#7bc67e", "#c79be0", "#f2b45c", "#b8c0c8"];
  const chosen = { row: data.start || data.rows[0] || "", sample: 0, order: "number" };

  const colour = (number) => (dark.matches ? night : light)[number % light.length];
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faint = (hex) => hex + "33";

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // -- controls ---------------------------------------------------------------------------------------------------

  function control(label, id, options, act) {
    const outer = element("label", "", label);
    const select = element("select");
    select.id = id;
    options.forEach(([value, text]) => {
      const option = element("option", "", text);
      option.value = value;
      select.append(option);
    });
    select.addEventListener("change", () => { act(select.value); draw(); });
    outer.append(select);
    document.getElementById("controls").append(outer);
  }

  function controls() {
    if (data.rows.length > 1) {
      control("Layer", "row", data.rows.map((name) => [name, name]), (value) => { chosen.row = value; });
      document.getElementById("row").value = chosen.row;
    }
    const most = Math.max(0, ...data.samples.map((own) => own.length));
    if (most > 0) {
      const names = [["0", "all"]];
      for (let i = 0; i < most; i++) names.push([String(i + 1), `sequence ${data.samples[0][i] ?? i}`]);
      control("Show", "sample", names, (value) => { chosen.sample = Number(value); });
      const orders = [["number", "number"], ["saturation", "saturation"], ["activity", "activity"],
                      ["effect", "effect on the loss"]];
      control("Sort units by", "order", orders, (value) => { chosen.order = value; });
    }
  }

  // -- traces -----------------------------------------------------------------------------------------------------

  function styled(given) {
    const trace = { ...given };
    const own = colour(trace.colour ?? 0);
    if (trace.type === "heatmap") return mapped(trace);
    if (trace.band) {
      Object.assign(trace, { fill: "toself", fillcolor: faint(own), line: { width: 0 } });
    } else if (trace.point) {
      const symbol = (trace.slow ? "diamond" : "circle") + (trace.open ? "-open" : "");
      trace.marker = { symbol, size: 13, color: own, line: { width: 2.5, color: trace.open ? own : token("--text") } };
    } else {
      trace.line = { color: own, width: trace.thin ? 1 : 2, dash: trace.dash };
      trace.marker = { color: own, size: trace.small ? 5 : 7 };
      if (trace.thin) trace.opacity = 0.75;
    }
    if (trace.hovertemplate && !trace.hovertemplate.includes("<extra>")) trace.hovertemplate += "<extra></extra>";
    return trace;
  }

  function mapped(trace) {
    if (trace.diverging) {
      const most = Math.max(1e-12, ...trace.z.flat().map((value) => Math.abs(value ?? 0)));
      trace.zmin = -most;
      trace.zmax = most;
      trace.colorscale = [[0, dark.matches ? "#6db5ec" : "#1b6ca8"], [0.5, dark.matches ? "#2a3038" : "#e9ecef"],
                          [1, dark.matches ? "#ff8b98" : "#d1495b"]];
    } else {
      trace.colorscale = "Viridis";
    }
    trace.colorbar = { exponentformat: "e", thickness: 10, len: 1, outlinewidth: 0, tickfont: { color: token("--soft"), size: 11 } };
    return trace;
  }

  function heat(given) {
    const map = given.maps[Math.min(chosen.sample, given.maps.length - 1)];
    const raw = Uint8Array.from(atob(map), (letter) => letter.charCodeAt(0));
    const columns = given.steps.length;
    const rank = given.units.map((_, index) => index);
    const by = given.orders[chosen.order];
    if (by) rank.sort((a, b) => by[b] - by[a]);
    const z = rank.map((row) => Array.from(raw.subarray(row * columns, (row + 1) * columns),
      (byte) => given.low + ((given.high - given.low) * byte) / 255));
    const names = rank.map((row) => given.units[row]);
    return {
      type: "heatmap", x: given.steps, y: names.map((_, place) => place), z, zmin: given.low, zmax: given.high,
      diverging: given.kind === "tanh",
      customdata: names.map((unit) => given.steps.map(() => unit)),
      hovertemplate: "unit %{customdata}, step %{x}: %{z:.2f}<extra></extra>",
    };
  }

  // -- drawing ----------------------------------------------------------------------------------------------------

  function layout(section, width) {
    const given = section.layout || { xaxis: { title: { text: "step" } }, yaxis: { title: { text: "units" } } };
    const narrow = width < 480;
    const axis = (own) => ({
      gridcolor: token("--grid"), zerolinecolor: token("--line"), linecolor: token("--line"), automargin: true,
      exponentformat: "e",
      tickfont: { size: narrow ? 11 : 12 }, ...own,
      title: { ...(own.title || {}), font: { size: narrow ? 12 : 13 }, standoff: 8 },
    });
    const made = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: token("--text") },
      margin: { l: 48, r: 14, t: 10, b: 44 },
      xaxis: axis({ ...given.xaxis, zeroline: false }), yaxis: axis({ ...given.yaxis, zeroline: Boolean(given.zero) }),
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: narrow ? 11 : 12 } },
      hoverlabel: { bgcolor: token("--card"), bordercolor: token("--line"), font: { color: token("--text") } },
      height: Math.max(320, section.tall || 0), width, dragmode: narrow ? false : "zoom",
    };
    if (section.heat) {
      made.yaxis.showticklabels = chosen.order === "number";
      made.yaxis.title.text = chosen.order === "number" ? "unit" : `units, largest ${chosen.order} first`;
      made.yaxis.autorange = "reversed";
      made.margin.r = 8;
    }
    if (section.id === "templates") made.yaxis.tickfont.size = narrow ? 9 : 10;
    if (given.circle) {
      made.shapes = [{ type: "circle", x0: -1, x1: 1, y0: -1, y1: 1, line: { color: token("--soft"), width: 1 } }];
      made.yaxis.scaleanchor = "x";
      made.height = Math.min(460, Math.max(330, width));
    }
    if (given.zero) made.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0,
      line: { color: token("--soft"), width: 1, dash: "dash" } }];
    return made;
  }

  function plot(section, place) {
    const drawn = element("div", "plot");
    drawn.dataset.picture = section.id;
    place.append(drawn);
    const later = section.by_sample || [[]];
    const extra = later[Math.min(chosen.sample, later.length - 1)];
    const traces = section.heat ? [heat(section.heat)] : [...(section.traces || []), ...extra];
    const all = section.id === "points" ? [...extra, ...(section.traces || [])] : traces;
    const made = all.map(styled);
    const config = { displayModeBar: false, responsive: false };
    Plotly.newPlot(drawn, made, { ...layout(section, place.clientWidth), showlegend: made.length > 1 }, config);
  }

  function table(given, place, id) {
    const outer = element("div", `scroll ${id}`);
    const made = element("table");
    made.append(element("caption", "", given.caption));
    if (given.rows.length) {
      const head = element("tr");
      given.head.forEach((name) => head.append(element("th", "", name)));
      made.append(head);
      given.rows.forEach((cells) => {
        const row = element("tr");
        cells.forEach((cell) => row.append(element("td", "", cell)));
        made.append(row);
      });
    }
    outer.append(made);
    place.append(outer);
  }

  function sectionsOf(diagnosis) {
    return diagnosis.rows[chosen.row] || Object.values(diagnosis.rows)[0] || [];
  }

  function draw() {
    const main = document.getElementById("pictures");
    const before = window.scrollY;
    main.querySelectorAll(".plot").forEach((one) => Plotly.purge(one));
    main.replaceChildren();
    const every = data.diagnoses.map(sectionsOf);
    const ids = [];
    every.flat().forEach((section) => { if (!ids.includes(section.id)) ids.push(section.id); });
    const waiting = [];
    ids.forEach((id) => {
      const first = every.flat().find((section) => section.id === id);
      const wide = ["contraction", "templates", "trees", "curves"].includes(id);
      const picture = element("section", wide ? "picture wide" : "picture");
      picture.id = `picture-${id}`;
      picture.append(element("h2", "", first.title), element("p", "how", first.how));
      const cells = element("div", "cells");
      picture.append(cells);
      data.diagnoses.forEach((diagnosis, index) => {
        const cell = element("div");
        cells.append(cell);
        if (data.diagnoses.length > 1) cell.append(element("p", "name", diagnosis.title));
        waiting.push([every[index].find((section) => section.id === id), cell]);
      });
      main.append(picture);
    });
    waiting.forEach(([section, cell]) => {
      if (!section) { cell.append(element("p", "none", "This network has no such picture.")); return; }
      if (section.none) { cell.append(element("p", "none", section.none)); return; }
      if (section.traces || section.by_sample || section.heat) plot(section, cell);
      if (section.table) table(section.table, cell, section.id);
    });
    if (!ids.length) main.append(element("p", "none", "Nothing could be measured: see the finding above."));
    window.scrollTo(0, before);
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  }

  controls();
  draw();
  dark.addEventListener("change", draw);
  let wide = document.body.clientWidth, pause = 0;
  window.addEventListener("resize", () => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      if (document.body.clientWidth !== wide) { wide = document.body.clientWidth; draw(); }
    }, 120);
  });
})();
