"""The look of figures: contact sheets, targets drawn on images, and text styles."""
