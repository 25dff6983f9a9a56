from matplotlib.figure import Figure
def draw(info): return Figure()
