"""The picture of the schedules: what `trainer.optim.schedules` computes, with default settings."""

from matplotlib.figure import Figure

from trainer.optim.schedules import drops
from trainer.run.config.fit import parse_fit

EPOCHS = 30
NAMES = ("one_cycle", "flat_cos", "step", "plateau", "constant")
SCORES = [min(epoch, 9) + min(max(epoch - 16, 0), 4) for epoch in range(EPOCHS)]  # of a run that stops improving twice


def draw_schedules(file):
    """Draw each schedule over the run into an SVG, and return the image in HTML."""
    figure = Figure(figsize=(9, 1.7), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(NAMES), sharey=True), NAMES, strict=True):
        fit = parse_fit({"schedule": name, "lr": 1.0, "epochs": EPOCHS})
        rate = fit.schedules()["lr"]
        values = [rate(i / 300) for i in range(301)]
        if name == "plateau":
            fallen = [drops(SCORES[: epoch * EPOCHS // 300], fit.plateau_patience) for epoch in range(301)]
            values = [value * fit.drop_factor**times for value, times in zip(values, fallen, strict=True)]
        axes.plot([i * EPOCHS / 300 for i in range(301)], values, color="#3d7fc4")
        axes.set_title(name, size=10, color="gray")
        axes.set_xlabel("epoch", size=8, color="gray")
        axes.tick_params(colors="gray", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color("gray")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, transparent=True, metadata={"Date": None})
    text = "Learning rate over the epochs, as a share of fit.lr, for each schedule"
    return f'<p><img class="dark-light" src="_static/{file.name}" alt="{text}"></p>'
