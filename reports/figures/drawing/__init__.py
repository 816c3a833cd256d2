"""Drawing tools shared by all figures.

layout: headers, and panels placed in inches
row_chart: figures of rows; the rows and marks of configurations and measurements
style: matplotlib's settings, colours, text widths; PNG, SVG, and SVG to embed in the page
"""
