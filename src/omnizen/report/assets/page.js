"use strict";
(() => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name.slice(1)).trim();
  // Colours in figures are names such as "@wire"; other texts that begin with @ are left alone.
  const themed = (value, key) => {
    if (Array.isArray(value)) return value.map((v) => themed(v, key));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, k)]));
    return typeof value === "string" && value[0] === "@" && /^color/.test(key) ? color(value) : value;
  };
  const axis = (own) => ({
    gridcolor: color("@grid"), zeroline: false, linecolor: color("@grid"), fixedrange: true, automargin: true,
    ...own, title: { standoff: 10, font: { size: 13 }, ...(own || {}).title },
  });
  const draw = () => {
    const narrow = window.innerWidth < 640;
    for (const source of document.querySelectorAll("script[data-chart]")) {
      const { data, layout } = themed(JSON.parse(source.textContent), "");
      const font = getComputedStyle(document.body).fontFamily;
      Plotly.react(source.dataset.chart, data, {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, hovermode: "closest",
        font: { family: font, size: narrow ? 12 : 13, color: color("@soft") },
        margin: { l: 10, r: narrow ? 10 : 24, t: 10, b: 10 },
        hoverlabel: { bgcolor: color("@card"), bordercolor: color("@line"), font: { family: font, color: color("@ink") } },
        ...layout,
        legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", ...layout.legend },
        xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      }, { displayModeBar: false, responsive: true });
    }
    document.documentElement.dataset.drawn = document.querySelectorAll(".chart svg.main-svg").length;
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
