"""The charts behind the HiCache tab: one page, no files from elsewhere."""

from __future__ import annotations

PAGE = r"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>HiCache - Locust</title>
<style>
  body { font: 15px system-ui, sans-serif; margin: 2rem auto; max-width: 1000px; padding: 0 1rem;
         background: #fff; color: #1c2430 }
  svg { width: 100%; height: 220px; display: block; border: 1px solid #cdd5df }
  h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 1.5rem 0 .4rem }
  .key span { margin-right: 1.2rem } .key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em }
  .note { color: #566 }
</style>
<h1>HiCache</h1>
<p id="whole" class="note">No run yet.</p>
<h2>Where prompt tokens came from, by 5 s of the run</h2>
<svg id="mix" viewBox="0 0 1000 220" preserveAspectRatio="none" role="img" aria-label="tier mix over time"></svg>
<p class="key" id="mixkey"></p>
<h2>Median TTFT by tier <span class="note" id="top"></span></h2>
<svg id="ttft" viewBox="0 0 1000 220" preserveAspectRatio="none" role="img" aria-label="TTFT by tier"></svg>
<p class="key" id="ttftkey"></p>
<p class="note">Live figures. The report is made from the run directory.</p>
<script>
const MIX = {device: "#1b7f5c", host: "#2f6fd0", storage: "#9a4fc4", computed: "#c9ced6"};
const KINDS = {device: "#1b7f5c", host: "#2f6fd0", storage: "#9a4fc4", mixed: "#c77d16", cold: "#7a8290"};
const percent = x => x === null ? "-" : (100 * x).toFixed(1) + "%";
const key = (id, colors) => document.getElementById(id).innerHTML = Object.entries(colors)
  .map(([name, color]) => `<span><i style="background:${color}"></i>${name}</span>`).join("");
key("mixkey", MIX); key("ttftkey", KINDS);
function mix(windows) {
  const width = 1000 / Math.max(windows.length, 12);
  return windows.map((w, i) => {
    if (w.tiers.device === null) return "";
    const parts = {...w.tiers, computed: Math.max(0, 1 - w.tiers.device - w.tiers.host - w.tiers.storage)};
    let y = 220;
    return Object.entries(MIX).map(([name, color]) => {
      const h = 220 * parts[name]; y -= h;
      return `<rect x="${i * width}" y="${y}" width="${width * .94}" height="${h}" fill="${color}"/>`;
    }).join("");
  }).join("");
}
function lines(windows) {
  const top = Math.max(1, ...windows.flatMap(w => Object.keys(KINDS).map(k => w.ttft_ms[k] || 0)));
  document.getElementById("top").textContent = `(0 to ${top.toPrecision(3)} ms)`;
  const width = 1000 / Math.max(windows.length, 12);
  return Object.entries(KINDS).map(([name, color]) => windows.map((w, i) => w.ttft_ms[name] === null ? "" :
    `<circle cx="${(i + .5) * width}" cy="${214 - 208 * w.ttft_ms[name] / top}" r="5" fill="${color}"/>`
  ).join("")).join("");
}
async function refresh() {
  try {
    const live = await (await fetch("hicache/data")).json();
    if (live.whole) {
      const w = live.whole;
      document.getElementById("whole").textContent = `${w.requests} requests, ${w.failed} failed, hit ratio ` +
        `${percent(w.hit_ratio)}: device ${percent(w.tiers.device)}, host ${percent(w.tiers.host)}, ` +
        `storage ${percent(w.tiers.storage)}`;
      document.getElementById("mix").innerHTML = mix(live.windows);
      document.getElementById("ttft").innerHTML = lines(live.windows);
    }
  } catch (error) { document.getElementById("whole").textContent = "No answer from Locust: " + error; }
  setTimeout(refresh, 2000);
}
refresh();
</script>
</html>
"""
