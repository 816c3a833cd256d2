"""Drawing tools shared by all figures.

layout: sheets, headers, and panels placed in inches
chart: the types of a figure: chart, drawing, picture
glyphs: drawing of figures with rows
row_chart: marks of training configurations and measurements
lines: axes, intervals and labels of panels with curves
label_layout: labels next to points, clear of lines
style, palette, text_size: matplotlib's settings, colours, text widths
inline_svg: an SVG to embed in the page
"""
