"""The look of the page, and the one script it can do without: sorting a table by a click on its head."""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark;
  --ground: #fbfbf9; --sheet: #ffffff; --ink: #1b1e22; --soft: #545b63; --rule: #d9dce0; --faint: #eceef0;
  --shade: #0000002e;
  --ours: #0063a6; --against: #a83f00; --quiet: #e6eef5; --drafted: #dcebf7; --tier1: #fbe6d2; --tier2: #dcf1e8;
  --c0: #0072b2; --c1: #c24e00; --c2: #00805c; --c3: #a8558a; --c4: #2f8fc4; --c5: #a87400; --c6: #5b5f66;
  --c7: #7a3fb0;
  --p0: #0072b2; --p1: #56b4e9; --p2: #3c8fc9; --p3: #e69f00; --p4: #cc79a7; --p5: #b4b9bf;
  --on0: #fff; --on1: #111; --on2: #fff; --on3: #111; --on4: #111; --on5: #111; }
@media screen and (prefers-color-scheme: dark) { :root {
  --ground: #131619; --sheet: #1a1e22; --ink: #e7e9eb; --soft: #a3abb3; --rule: #363d44; --faint: #262c31;
  --shade: #000000a0;
  --ours: #6cbcf0; --against: #f2a063; --quiet: #1f2f3c; --drafted: #1d3a52; --tier1: #4a3118; --tier2: #173f31;
  --c0: #5cb3ec; --c1: #f0874a; --c2: #3cc79b; --c3: #e29cc6; --c4: #9bd3f5; --c5: #e6b13f; --c6: #b3b9c0;
  --c7: #c09cf0;
  --p0: #3f9bd8; --p1: #8fd0f7; --p2: #66b5e6; --p3: #e0a021; --p4: #d68fb6; --p5: #6f777f;
  --on0: #111; --on5: #fff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { overflow-wrap: break-word; margin: 0; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main, header, footer { max-width: 86rem; margin: 0 auto; padding: 0 clamp(1rem, 3vw, 2.5rem); }
header { padding-top: 2.2rem; }
h1 { font-size: clamp(1.5rem, 1.1rem + 1.6vw, 2.1rem); line-height: 1.2; margin: 0 0 .35rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3.2rem 0 .4rem; padding-top: 1rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; line-height: 1.35; margin: 1.5rem 0 .4rem; }
p { margin: .4rem 0 .9rem; max-width: 46rem; }
a { color: var(--ours); }
:focus-visible { outline: 2px solid var(--ours); outline-offset: 2px; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .85em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
h3 .soft { font-weight: 400; }
.facts { color: var(--soft); margin: 0; max-width: none; }
nav { margin: 1.2rem 0 0; font-size: .9rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
.verdict { display: grid; gap: 1.2rem; margin-top: 1.6rem;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); grid-template-areas: "for against" "doubts against";
  grid-template-rows: auto 1fr; }
.verdict section { background: var(--sheet); border: 1px solid var(--rule); border-top: 4px solid var(--soft);
  padding: 1rem 1.2rem; }
.verdict h2 { margin: 0 0 .5rem; padding: 0; border: 0; font-size: 1.1rem; }
.verdict .for { grid-area: for; border-top-color: var(--ours); }
.verdict .against { grid-area: against; border-top-color: var(--against); }
.verdict .doubts { grid-area: doubts; }
.verdict dl { margin: 0; display: grid; grid-template-columns: minmax(4.6rem, max-content) minmax(0, 1fr);
  gap: .55rem 1rem; }
.verdict dt { font-weight: 650; font-size: 1.15rem; line-height: 1.3; font-variant-numeric: tabular-nums;
  }
.verdict .for dt:first-of-type, .verdict .against dt:first-of-type { font-size: 2rem; line-height: 1.1; }
.for dt { color: var(--ours); } .against dt { color: var(--against); }
.verdict dd { margin: 0; overflow-wrap: anywhere; line-height: 1.42; }
@media (max-width: 30rem) { .verdict dl { display: block; } .verdict dt { max-width: none; }
  .verdict dd { margin-bottom: .8rem; } }
@media (max-width: 50rem) { .verdict { grid-template-columns: minmax(0, 1fr);
  grid-template-areas: "for" "against" "doubts"; grid-template-rows: none; } }
.box { position: relative; overflow-x: auto; margin: .6rem 0 1rem; border: 1px solid var(--rule);
  background: linear-gradient(90deg, var(--sheet) 40%, transparent) left / 3rem 100% no-repeat local,
    linear-gradient(-90deg, var(--sheet) 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(-90deg, var(--shade), transparent) right / .8rem 100% no-repeat scroll, var(--sheet); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .7rem; text-align: right; vertical-align: middle; border-bottom: 1px solid var(--faint); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { vertical-align: bottom; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--rule);
  font-size: .82rem; line-height: 1.25; min-width: 4.1rem; }
.dense thead th { min-width: 2.4rem; } .dense th, .dense td { padding: .32rem .45rem; }
th:first-child, td.words, th.words { text-align: left; }
td { white-space: nowrap; } td.words { white-space: normal; }
td.long { min-width: 11rem; overflow-wrap: anywhere; } tr.dull > * { color: var(--soft); }
tbody th { font-weight: 500; min-width: 8.5rem; max-width: 17rem; line-height: 1.3; overflow-wrap: anywhere; }
@media (max-width: 36rem) { .wide tbody th { max-width: 9rem; } }
.wide tbody th, .wide thead th:first-child { position: sticky; left: 0; z-index: 1; background: var(--sheet);
  box-shadow: 1px 0 0 var(--rule); }
th.pictured { min-width: 11rem; width: 24%; } 
.small { table-layout: fixed; } .small th { min-width: 0; } .small th.pictured { width: 33%; min-width: 0; }
.small th:nth-child(2) { width: 5.7rem; }
.small { border: 0; background: none; margin: 0; } .small th, .small td { padding: .1rem .5rem .1rem 0; }
.small tbody th { min-width: 0; max-width: none; font-size: .88rem; }
.small td, .small th { padding-right: .9rem; } .small td:last-child, .small th:last-child { padding-right: .4rem; }
.bounds { color: var(--soft); font-size: .9em; font-weight: 400; } td.ratio { line-height: 1.25; }
td.ratio .bounds { display: block; }
td.low { color: var(--against); font-weight: 650; }
.tag { display: inline-block; font-size: .72rem; line-height: 1.25; padding: 0 .35rem; margin-left: .3rem;
  border: 1px solid currentColor; border-radius: 2px; color: var(--soft); white-space: nowrap; font-weight: 500; }
.tag.ours { color: var(--ours); } .tag.lossy { color: var(--against); border-style: dashed; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; text-align: inherit;
  cursor: pointer; }
th button:hover { text-decoration: underline; }
th[aria-sort] button { color: var(--ink); text-decoration: underline; }
svg { overflow: visible; display: block; } svg text { fill: var(--soft); font-size: 12px;
  font-variant-numeric: tabular-nums; }
svg line { stroke: currentColor; } .bar { margin: -2px 0; }
.bar.axis { margin: 0; } .axis text { font-size: 11px; }
line.grid { stroke: var(--faint); } line.one { stroke: var(--soft); stroke-dasharray: 2 2; }
line.floor { stroke: var(--against); stroke-dasharray: 5 4; } line.whisker { stroke-width: 2; }
.ours { color: var(--ours); } .others { color: var(--soft); } .lossy { color: var(--against); }
.bar circle, .strip circle { fill: currentColor; } .others circle { fill: var(--sheet); stroke: currentColor;
  stroke-width: 2; }
.lossy circle { fill: var(--sheet); stroke: currentColor; stroke-width: 2; stroke-dasharray: 2 1.5; }
.mark { fill: currentColor; stroke: var(--sheet); stroke-width: 1; } .key { display: inline-block;
  vertical-align: -1px; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.curve line { stroke-width: 2; } .curve.d1 line { stroke-dasharray: 6 4; } .curve.d2 line { stroke-dasharray: 2 3; }
figure { margin: .8rem 0 1.2rem; } .plot { margin: .8rem 0 1.6rem; }
.framed { padding: .2rem 1rem .2rem 3.4rem; max-width: 46rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(23rem, 100%), 1fr)); gap: 1rem;
  margin: .8rem 0; }
.panels > section, .panels > figure { background: var(--sheet); border: 1px solid var(--rule);
  padding: .7rem .9rem .8rem; margin: 0;
  min-width: 0; }
.panels h3 { margin: 0; } .panels .soft { margin: 0 0 .4rem; }
figcaption.axis { text-align: center; margin-top: -.6rem; }
.beside { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 2rem; align-items: start; }
@media (max-width: 60rem) { .beside { grid-template-columns: minmax(0, 1fr); gap: .5rem; } }
.legend { overflow-wrap: anywhere; display: flex; flex-wrap: wrap;
  gap: .25rem 1.1rem; font-size: .88rem; margin: .4rem 0; padding: 0;
  list-style: none; }
.swatch { display: inline-block; width: .85rem; height: .85rem; vertical-align: -1px; margin-right: .35rem; }
.part rect { stroke: var(--sheet); stroke-width: 1; } .part { overflow: hidden; }
.p0 rect { fill: var(--p0); } .p1 rect { fill: var(--p1); } .p2 rect { fill: var(--p2); }
.p3 rect { fill: var(--p3); }
.p4 rect { fill: var(--p4); } .p5 rect { fill: var(--p5); }
.p0 text { fill: var(--on0); } .p1 text { fill: var(--on1); } .p2 text { fill: var(--on2); }
.p3 text { fill: var(--on3); }
.p4 text { fill: var(--on4); } .p5 text { fill: var(--on5); }
.strip .quiet { fill: var(--quiet); } .strip .dot { fill: var(--soft); opacity: .75; }
.outputs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); gap: 1rem; }
.outputs > article { background: var(--sheet); border: 1px solid var(--rule); padding: .7rem .9rem; min-width: 0; }
.outputs h4 { margin: 0; font-size: .95rem; } .outputs .soft { margin: .1rem 0 .5rem; }
.said { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .92rem; line-height: 1.75; margin: 0;
  max-width: none; }
blockquote { margin: .3rem 0 .8rem; padding-left: .9rem; border-left: 3px solid var(--rule); white-space: pre-wrap;
  color: var(--soft); font-size: .92rem; max-width: 60rem; overflow-wrap: anywhere; }
.t { padding: .1em 0 .05em; margin-right: 1px; }
.t1 { background: var(--drafted); border-bottom: 2px solid var(--ours); }
.t2 { background: var(--tier1); border-bottom: 2px dashed var(--against); }
.t3 { background: var(--tier2); border-bottom: 3px double var(--c2); }
.t.split { margin: 0 3px; outline: 2px solid var(--against); outline-offset: 1px; font-weight: 700; }
details { margin: .5rem 0 1rem; } summary { cursor: pointer; color: var(--ours); }
.terms { display: grid; grid-template-columns: minmax(8rem, 14rem) minmax(0, 1fr); gap: .35rem 1.2rem;
  font-size: .92rem; }
.terms dt { font-weight: 600; } .terms dd { margin: 0; max-width: 50rem; overflow-wrap: anywhere; }
@media (max-width: 36rem) { .terms { grid-template-columns: minmax(0, 1fr); gap: 0; }
.terms dd { margin-bottom: .6rem; } }
footer { margin-top: 3rem; padding-bottom: 2.5rem; color: var(--soft); font-size: .85rem; }
@media print { :root { color-scheme: light; --ground: #fff; }
  body { font-size: 9.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; } nav { display: none; }
  .box { overflow: visible; background: none; }
  th.pictured { min-width: 6rem; width: auto; } .wide th { position: static; }
  h2, h3, main > section > p { break-after: avoid; }
  .verdict section, .panels > *, .outputs > article, tr, figure { break-inside: avoid; } table { font-size: 7.5pt; }
  th, td { padding: .2rem .15rem; } thead th { font-size: 6.4pt; }
  p { break-inside: avoid; } thead th { min-width: 0; } td.words { min-width: 0; } }
"""

SCRIPT = """
document.querySelectorAll("table.sorts").forEach(table => {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const given = row.cells[at].dataset.value;
    return given === undefined ? row.cells[at].textContent : given === "" ? -Infinity : Number(given);
  };
  heads.forEach((head, at) => {
    if (head.querySelector("svg")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a, at), y = value(b, at);
        return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });
});
"""
