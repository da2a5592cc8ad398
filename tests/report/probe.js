// Reports to the frame around it what the page looks like: errors, overflow, charts, contrast, theme.
const failures = [];
addEventListener("error", (e) => failures.push(e.message));
document.addEventListener("securitypolicyviolation", (e) => failures.push("blocked: " + e.blockedURI));

const parse = (color) => color.match(/[\d.]+/g).map(Number);
const luminance = (color) =>
  color.slice(0, 3)
    .map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (el) => {
  for (; el; el = el.parentElement) {
    const color = parse(getComputedStyle(el).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const contrast = (color, el) => {
  const [high, low] = [luminance(parse(color)), luminance(behind(el))].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const CHART_TEXT = ".xtick text, .ytick text, .legendtext, .xtitle, .ytitle, .heatmap-label text";

addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement, wide = root.clientWidth;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const faint = [
    ...all("h1, h2, h3, p, a, dt, dd, th, td, caption, figcaption, summary, code, li")
      .filter((el) => contrast(getComputedStyle(el).color, el) < 4.5),
    ...all(CHART_TEXT).filter((el) => contrast(getComputedStyle(el).fill, el.closest(".chart")) < 4.5),
  ];
  const outside = all("body *").filter(
    (el) => !el.closest(".scroll, nav, svg, script, style") && el.getBoundingClientRect().right > wide + 1);
  const clipped = all(".chart text").filter((el) => {
    const own = el.getBoundingClientRect(), chart = el.closest(".chart").getBoundingClientRect();
    return own.width && (own.left < chart.left - 1 || own.right > chart.right + 1);
  });
  const charts = all(".chart");
  parent.postMessage({
    width: wide,
    scroll: root.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    charts: charts.length,
    drawn: charts.filter((c) => c.querySelector("svg.main-svg .trace, svg.main-svg .hm")).length,
    failures,
    faint: faint.map((el) => el.tagName + " " + el.textContent.slice(0, 60)),
    outside: outside.map((el) => el.outerHTML.slice(0, 120)),
    clipped: clipped.map((el) => el.textContent),
    background: getComputedStyle(document.body).backgroundColor,
    ink: [...new Set(all(".xtick text").map((el) => el.style.fill))],
  }, "*");
}, 500));
