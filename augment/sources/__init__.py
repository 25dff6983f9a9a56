"""Where pictures come from: each source is declared once, as a dataclass of its settings that loads a dataset."""

from augment.sources.files import FileList, Folder, Imagenette, Imagewoof, Sample, SampleMultilabel
from augment.sources.own import Own
from augment.sources.packed import Arrays, WebDataset
from augment.sources.records import Lmdb, Parquet, RecordIO, TFRecord
from augment.sources.registry import SOURCES, Source, load_dataset, notes_of, parse_data, source

__all__ = [
    "SOURCES",
    "Arrays",
    "FileList",
    "Folder",
    "Imagenette",
    "Imagewoof",
    "Lmdb",
    "Own",
    "Parquet",
    "RecordIO",
    "Sample",
    "SampleMultilabel",
    "Source",
    "TFRecord",
    "WebDataset",
    "load_dataset",
    "notes_of",
    "parse_data",
    "source",
]
