"""The page of suspicious labels in a browser: decisions, keys, and a saved file that data.labels applies."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import run_script

from augment.data.corrections import corrected, pinned
from augment.data.dataset import Dataset, Split
from augment.support.errors import UserError
from augment.support.files import json_line
from augment.support.untrusted_files import read_as
from trainer.figures.label_report import PAGE_FILE, LabelReport, Suspect
from trainer.report.page import write_page
from trainer.tasks.label_errors import Estimate

NAMES = ("</script><script>alert(1)</script>", '=cmd|"calc"', "bee, wasp", "cat")
PATHS = tuple(f"photos/train/{kind}/{n}.jpg" for n, kind in enumerate(("a", "b", '-c"', "d", "e")))


def report_of(*, several: bool = False) -> LabelReport:
    suspects = tuple(
        Suspect(path, NAMES[n % 4], NAMES[(n + 1) % 4], -2.0 - n, 0.9 if n else math.nan)
        for n, path in enumerate(PATHS)
    )
    return LabelReport((Estimate("labels", 5, 0.2, 0.1, 0.3),), NAMES, several, ((NAMES[0], NAMES[1], 3),), suspects)


def page_of(folder: Path, **options: Any) -> str:
    write_page(folder, report_of(**options), "<b>mine</b>")
    return (folder / PAGE_FILE).read_text()


_SAVE = """
  let saved = null;
  URL.createObjectURL = (blob) => { saved = blob; return "#"; };
  HTMLAnchorElement.prototype.click = () => {};
  const key = async (name) => {
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true})); await wait(20);
  };
  const saveAs = async () => { document.getElementById("save").click(); return saved.text(); };
"""


def test_saves_what_data_labels_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""{_SAVE}
      localStorage.clear();
      const cases = all(".case");
      await click(cases[0].querySelector(".change"));   // the suggestion, a formula
      await key("ArrowRight");
      await key("d");
      await key("k");
      const other = cases[3].querySelector("input");
      other.value = "dog";
      await click(cases[3].querySelector(".change"));
      const invalid = other.getAttribute("aria-invalid");
      await choose(other, "bee, wasp");
      await click(cases[4].querySelector(".drop"));
      await click(cases[4].querySelector(".drop"));     // undoes it
      return {{text: await saveAs(), invalid: invalid, count: texts("#count")[0], images: cases.length,
               scripts: all("script").length, kept: localStorage.length}};
    """
    found = run_script(page_of(tmp_path), script, tmp_path)
    assert found["invalid"] == "true"
    assert found["count"].startswith("1 kept, 2 changed, 1 dropped of 5")
    assert found["images"] == 5
    assert found["scripts"] == 3  # the data, the page's script, and the test's
    assert found["kept"] == 1
    monkeypatch.chdir(tmp_path)
    Path("corrections.csv").write_text(found["text"], encoding="utf-8")
    data = Dataset(NAMES, Split(tuple(map(Path, PATHS)), (0, 1, 2, 3, 0)))
    train = corrected(data, pinned("corrections.csv"), data).train
    assert [str(file) for file in train.files] == [PATHS[n] for n in (0, 2, 3, 4)]
    assert train.targets == (1, 2, 2, 0)


def test_changes_sets_of_labels(tmp_path: Path) -> None:
    script = f"""{_SAVE}
      const input = all(".case")[0].querySelector("input");
      input.value = "cat; dog";
      await click(all(".case .change")[0]);
      const invalid = input.getAttribute("aria-invalid");
      await choose(input, "cat;bee, wasp");
      return [invalid, await saveAs()];
    """
    invalid, text = run_script(page_of(tmp_path, several=True), script, tmp_path)
    assert invalid == "true"
    assert text == f'path,label,action\n"{PATHS[0]}","cat;bee, wasp","change"\n'


def test_runs_only_its_own_script(tmp_path: Path) -> None:
    tags: list[str] = []

    class Parsed(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append(tag)

    text = page_of(tmp_path)
    Parsed().feed(text)
    assert tags.count("script") == 2
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {*tags}
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "<b>mine" not in text


def test_rejects_images_from_servers(tmp_path: Path) -> None:
    content = json.loads(json_line({"estimates": [], "classes": [], "several": False, "pairs": [], "suspects": []}))
    content["suspects"] = [
        {"path": "a", "given": "b", "suggested": "c", "score": 1.0, "probability": None, "uri": "http://x/"}
    ]
    (tmp_path / "labels.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="damaged"):
        read_as(LabelReport, tmp_path / "labels.json")
