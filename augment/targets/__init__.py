"""What pictures come labeled with, and what becomes of it: classes, labels or numbers."""
