"""What all figures draw with: sheet, marks, labels, style."""
