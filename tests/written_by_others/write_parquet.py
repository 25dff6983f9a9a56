"""Tables that datasets, pandas and polars write: pip install datasets pandas polars pyarrow pillow."""

import pandas
import polars
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from drawn import HERE, NAMES, ORIGINALS, TARGETS, encoded

OUT = HERE / "parquet"


def main():
    OUT.mkdir(exist_ok=True)
    pictures = [content for _, content in encoded()]
    rows = [{"bytes": content, "path": name} for name, content in encoded()]
    features = Features({"image": Image(), "label": ClassLabel(names=NAMES)})
    Dataset.from_dict({"image": rows, "label": TARGETS}, features=features).to_parquet(OUT / "hub.parquet")
    paths = [str((ORIGINALS / name).relative_to(HERE)) for name, _ in encoded()]
    Dataset.from_dict({"image": paths, "label": TARGETS}, features=features).to_parquet(OUT / "paths.parquet")
    several = [[0, 2], [1], [], [0, 1, 2], [1], [2]]
    features = Features({"img": Image(), "tags": List(ClassLabel(names=NAMES)), "caption": Value("string")})
    made = Dataset.from_dict({"img": rows, "tags": several, "caption": ["it"] * 6}, features=features)
    made.to_parquet(OUT / "several.parquet", batch_size=2)
    names = [NAMES[target] for target in TARGETS]
    # Each of the two with its own kind of categories, and of other settings than by default.
    frame = pandas.DataFrame({"image": pictures, "label": names, "kind": names}, index=list("abcdef"))
    frame.astype({"kind": "category"}).to_parquet(OUT / "pandas.parquet", compression="gzip")
    frame = polars.DataFrame({"picture": pictures, "species": names, "kind": names, "number": TARGETS})
    frame = frame.with_columns(polars.col("kind").cast(polars.Categorical), polars.col("number").cast(polars.UInt8))
    frame.write_parquet(OUT / "polars.parquet")
    # A list of files, as pandas writes one by default: with a column of row numbers, which has no name.
    listed = pandas.DataFrame({"path": [f"originals/{name}" for name, _ in encoded()], "label": names})
    listed.to_csv(OUT.parent / "pandas.csv", lineterminator="\r\n")


if __name__ == "__main__":
    main()
