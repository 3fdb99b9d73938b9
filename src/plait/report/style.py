"""The style sheet of a report: light and dark as the reader's screen is set, narrow and wide, and on paper."""

from __future__ import annotations

from plait.report import palette

_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","Liberation Sans",sans-serif}
main,header,footer,nav{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:20px;margin:44px 0 8px;padding-top:10px;border-top:1px solid var(--line)}
h3{font-size:16px;margin:26px 0 6px;overflow-wrap:anywhere}
p{margin:6px 0 10px;max-width:78ch}
.lead{color:var(--muted);overflow-wrap:anywhere}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}
header nav{padding:0}
nav ul{display:flex;flex-wrap:wrap;gap:4px 18px;margin:14px 0 0;padding:0;list-style:none}
code,.mono{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(158px,1fr));gap:12px;margin:20px 0 4px;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0}
.tile dt{color:var(--muted);font-size:13px}
.tile dd{margin:0}
.tile .big{font-size:21px;line-height:1.3;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tile .mono{font-size:17px;line-height:31px}
.tile .sub{color:var(--muted);font-size:13px}
.facts{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 18px;margin:10px 0 14px}
.facts dt{color:var(--muted)}
.facts dd{margin:0;overflow-wrap:anywhere}
.note{border-left:3px solid var(--expert);background:var(--card);padding:8px 14px;margin:12px 0;max-width:80ch}
.note p{margin:2px 0}
figure{margin:14px 0 8px}
figcaption{color:var(--muted);font-size:14px;max-width:80ch;margin-bottom:8px}
.scroll{overflow-x:auto;max-width:100%;padding-bottom:4px}
table{border-collapse:collapse;font-size:14px;margin:8px 0}
.caption{color:var(--muted);font-size:14px;margin:10px 0 4px;max-width:80ch}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600;white-space:nowrap}
tbody th{font-weight:400}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.w{white-space:nowrap}
td.x{min-width:24ch;max-width:60ch;overflow-wrap:anywhere}
details{margin:6px 0 14px}
summary{cursor:pointer;color:var(--link);width:max-content;max-width:100%}
.good{color:var(--good)}
.bad{color:var(--bad)}
.soft{color:var(--muted)}
.road{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;margin:10px 0;padding:0}
.road>div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;min-width:0}
.road dt{color:var(--muted);font-size:13px}
.road dd{margin:0}
footer{color:var(--muted);font-size:13px;padding:30px 20px 40px;overflow-wrap:anywhere}
.pic{display:block;max-width:none}
.pic text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;
fill:var(--ink)}
.pic .t{font-size:11px}
.pic .m{fill:var(--muted)}
.pic .b{font-weight:600;font-size:13px}
.pic .n{font-variant-numeric:tabular-nums}
.pic .grid{stroke:var(--line);stroke-width:1}
.pic .zero{stroke:var(--muted);stroke-width:1}
.pic .leader{stroke:var(--line);stroke-width:1;fill:none}
.pic .whisker{stroke:var(--ink);stroke-width:1.2}
.pic .thin{stroke:var(--muted);stroke-width:1.2}
.pic .none{fill:var(--muted)}
.pic .blank{fill:var(--card);stroke:var(--line)}
.pic .run{fill:none;stroke:var(--ink);stroke-width:1.5;stroke-linecap:square}
.pic .rule{fill:var(--ink)}
.pic .member{fill:var(--soft-deployed)}
.pic .stroke{fill:none;stroke-width:2}
.pic .dash{stroke-dasharray:5 4;stroke-width:1.5}
.pic .ring,.pic .cross{fill:none;stroke-width:2}
.pic .ring{fill:var(--page)}
.pic .bar-base{fill:none;stroke:var(--base);stroke-width:1.3}
.pic .bar-expert{fill:var(--soft-expert);stroke:var(--expert);stroke-width:1}
"""

_MARKS = ("deployed", "expert", "base", "good", "bad")

_PRINT = """
@media print{
body{font-size:11px}
h1{font-size:20px}
h2{font-size:15px;margin-top:24px}
h3{font-size:12px}
table,figcaption,.caption,.tile dt,.tile .sub,.road dt,code,.mono{font-size:10px}
.tile .big,.tile .mono{font-size:14px;line-height:1.4}
section>p{break-after:avoid}
main,header,footer{max-width:none;padding:0}
nav,summary{display:none}
figure,.tile,.road>div,.note,tr{break-inside:avoid}
h2,h3,figcaption{break-after:avoid}
.scroll{overflow:visible}
.pic{max-width:100%;height:auto}
}
"""


def style() -> str:
    """All rules, in a fixed order."""
    light, dark = palette.variables()
    marks = "\n".join(
        f".pic .{name}{{fill:var(--{name})}}.pic .{name}.ring,.pic .{name}.cross,.pic .{name}.stroke"
        f"{{stroke:var(--{name})}}.pic .{name}.stroke,.pic .{name}.cross{{fill:none}}"
        f".pic .{name}.ring{{fill:var(--page)}}"
        for name in _MARKS
    )
    scales = "\n".join(f".pic {rule}" for rule in palette.classes().splitlines())
    return (
        f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"{_RULES}{marks}\n{scales}{_PRINT}"
    )
