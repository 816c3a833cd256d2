"""What all figures draw with.

board: the sheet, its head, panels placed in inches
chart: what a figure is
panel: marks in named rows, as values
marks: figures of rows, drawn
rows: rows of training configurations and measurements to marks
lines: axes, intervals and labels of panels with curves
label_placing: labels beside points, clear of lines
style, palette, text_size: matplotlib's settings, colours, widths of words
inline_svg: an SVG that can stand in the page
"""
