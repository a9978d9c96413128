"""An image's plan -> pcluster's image configuration, the component's script. Pure."""

from __future__ import annotations

import json
from functools import cache

from jinja2 import DictLoader, Environment, StrictUndefined

from toolkit.data import shipped
from toolkit.plan.image import ImagePlan
from toolkit.plan.node_check import node_check
from toolkit.plan.node_software import PAYLOAD_FOLDER, SETUP_FOLDER
from toolkit.render.shell import quote

CONFIG, COMPONENT = "image.yaml.j2", "component.sh.j2"
DELIMITER = "PD_END_OF_FILE"


def render_image_config(plan: ImagePlan) -> str:
    """What `pcluster build-image --image-configuration` gets; it has the parent as the plan names it."""
    tags = {**_version_tags(plan), **dict(plan.tags)}
    return _environment().get_template(CONFIG).render(plan=plan, software=plan.software, tags=tags.items())


def render_component(plan: ImagePlan) -> str:
    """The script that Image Builder runs: it holds every file of ami-setup that a node needs."""
    files = setup_files()
    for name, text in files.items():
        if DELIMITER in text:
            raise ValueError(f"{name} holds the line that ends it in the component: {DELIMITER}")
    return (
        _environment()
        .get_template(COMPONENT)
        .render(
            plan=plan,
            files=files,
            setup=SETUP_FOLDER,
            payload_folder=PAYLOAD_FOLDER,
            delimiter=DELIMITER,
        )
    )


def setup_files() -> dict[str, str]:
    """The files that the component lays down on the image, by their path in the setup folder."""
    names = ["versions.yaml", "facts.sh", "lib.sh"]
    names += sorted(
        f"steps/{entry.name}" for entry in shipped("ami-setup", "steps").iterdir() if entry.is_file()
    )
    return {**{name: _shipped(name) for name in names}, "verify.sh": node_check()}


def _version_tags(plan: ImagePlan) -> dict[str, str]:
    software = plan.software
    return {
        "pd:nvidia-driver": software.nvidia_driver,
        "pd:cuda": software.cuda,
        "pd:efa-installer": software.efa_installer,
        "pd:kernel": software.kernel,
        "pd:vllm": software.vllm,
        "pd:nixl": software.nixl,
    }


def _shipped(name: str) -> str:
    return shipped("ami-setup", *name.split("/")).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=DictLoader(
            {
                CONFIG: shipped("pcluster-config", CONFIG).read_text(encoding="utf-8"),
                COMPONENT: _shipped(COMPONENT),
            }
        ),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = quote
    # A JSON string is a double-quoted YAML scalar.
    environment.filters["yaml"] = lambda value: json.dumps(str(value), ensure_ascii=False)
    return environment
