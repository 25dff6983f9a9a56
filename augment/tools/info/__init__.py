"""The info tool: scan all images of a data set, summarize it, find likely problems, and draw it."""
