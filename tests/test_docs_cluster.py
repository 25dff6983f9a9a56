"""The files in docs/cluster: their fields, and the commands in them. A cluster is not started."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from generated import CLUSTER_FILES, ROOT
from torch.distributed.run import get_args_parser

from augment.cli.overrides import normalize
from trainer.cli.single_run import prepare
from trainer.run.config.fit import check_ranks
from trainer.run.folder.locks import release
from trainer.run.jobs import resumed_in

FOLDER = ROOT / "docs" / "cluster"
NODES, GPUS = 2, 4


def check_command(words: list[str], volume: str, folder: Path) -> Any:
    """Check the command of one machine as torchrun and the trainer read it, and return torchrun's options.

    The folder takes the place of the volume.
    """
    options = get_args_parser().parse_args(words[1:])
    assert (words[0], options.module, options.training_script) == ("torchrun", True, "trainer")
    tokens = normalize([token.replace(volume, str(folder)) for token in options.training_script_args])
    assert resumed_in(tokens) == "auto"
    try:
        run = prepare(tokens)
    finally:
        release()
    check_ranks(replace(run.config.fit, gpus=NODES * GPUS), run.config.aug.size)
    # All attempts use one folder on the volume, and continue its run.
    for path in (run.template.dir, run.config.resolved["data"]["root"]):
        assert folder in Path(path).parents
    return options


def test_every_file_is_on_a_page() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {*CLUSTER_FILES}


def test_the_train_job_is_valid(tmp_path: Path) -> None:
    """The fields are those of Kubeflow Trainer 2, JobSet, and Kubernetes."""
    runtime, job = yaml.safe_load_all((FOLDER / "trainjob.yaml").read_text())
    for one, kind in ((runtime, "TrainingRuntime"), (job, "TrainJob")):
        assert one.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert (one["apiVersion"], one["kind"]) == ("trainer.kubeflow.org/v1alpha1", kind)
    assert job["spec"].keys() == {"runtimeRef", "trainer"}
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": runtime["metadata"]["name"],
    }
    trainer = job["spec"]["trainer"]
    assert trainer.keys() == {"numNodes", "numProcPerNode", "resourcesPerNode", "command"}
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (NODES, GPUS)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": GPUS}}

    assert runtime["spec"].keys() == {"mlPolicy", "template"}
    assert runtime["spec"]["mlPolicy"] == {"torch": {}}  # so that Kubeflow sets PET_*
    jobs = runtime["spec"]["template"]["spec"]
    assert jobs.keys() == {"failurePolicy", "replicatedJobs"}
    assert jobs["failurePolicy"]["maxRestarts"] > 0
    (node,) = jobs["replicatedJobs"]
    assert (node.keys(), node["name"]) == ({"name", "template"}, "node")
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert node["template"]["spec"].keys() == {"backoffLimit", "template"}
    assert node["template"]["spec"]["backoffLimit"] == 0  # otherwise a single pod would start again, alone
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod.keys() == {"restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes"}
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert (container.keys(), container["name"]) == ({"name", "image", "volumeMounts"}, "node")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    check_command(trainer["command"], mounts["training"], tmp_path)


def test_the_skypilot_task_is_valid(tmp_path: Path) -> None:
    """Its script runs, with a torchrun that only prints its arguments."""
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert task.keys() == {"name", "num_nodes", "workdir", "resources", "file_mounts", "setup", "run"}
    resources = task["resources"]
    assert resources.keys() == {"accelerators", "use_spot", "job_recovery"}
    assert (task["num_nodes"], resources["use_spot"]) == (NODES, True)
    assert resources["accelerators"].endswith(f":{GPUS}")
    assert resources["job_recovery"]["max_restarts_on_errors"] > 0
    ((volume, mount),) = task["file_mounts"].items()
    assert mount.keys() == {"source", "mode"}
    assert mount["mode"] in ("MOUNT", "COPY", "MOUNT_CACHED")

    show = 'conda() { :; }\npip() { :; }\ntorchrun() { printf "%s\\n" "$@"; }\n'
    variables = {"NUM_NODES": NODES, "NODE_RANK": 1, "NUM_GPUS_PER_NODE": GPUS, "NODE_IPS": "10.0.0.1\n10.0.0.2"}
    environment = {f"SKYPILOT_{name}": str(value) for name, value in variables.items()}
    ended = subprocess.run(
        ["bash", "-euc", show + task["setup"] + task["run"]],
        env=environment | {"PATH": os.environ["PATH"]}, cwd=tmp_path, text=True, stdout=-1, check=True,
    )  # fmt: skip
    options = check_command(["torchrun", *ended.stdout.splitlines()], volume, tmp_path)
    assert (options.nnodes, options.node_rank, options.nproc_per_node) == (str(NODES), 1, str(GPUS))
    assert (options.master_addr, options.master_port) == ("10.0.0.1", 29500)


def test_commands_on_the_page_name_these_files() -> None:
    lines = [line.split() for line in (ROOT / "docs" / "gpus.md").read_text().splitlines()]
    named = {shlex.join(line[:-1]): line[-1] for line in lines if line[:1] in (["kubectl"], ["sky"])}
    assert named == {
        "kubectl apply -f": "docs/cluster/trainjob.yaml",
        "sky jobs launch": "docs/cluster/skypilot.yaml",
    }
