"""From the labels of images to targets: classes, any number of labels, or numbers."""
