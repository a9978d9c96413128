"""Run by the Python of an installed ParallelCluster: prints its configuration's keys and regions as JSON."""

import json
from importlib.resources import files

from marshmallow import fields
from pcluster.schemas.cluster_schema import ClusterSchema

SECTIONS = {}
CLASSES = {}


def kind(field):
    if isinstance(field, fields.Nested):
        name = section(field.schema)
        if type(field).__name__ == "OneOrManyCustomActionField":
            SECTIONS["CustomAction"] = SECTIONS.pop(name) | {"Sequence": "[CustomActionScript]"}
            SECTIONS["CustomActionScript"] = {"Script": "text", "Args": "[text]"}
            CLASSES.pop(name)
            return "CustomAction"
        return f"[{name}]" if field.schema.many else name
    if isinstance(field, fields.List):
        return f"[{kind(field.inner)}]"
    words = {fields.Bool: "switch", fields.Number: "number", fields.Str: "text", fields.Dict: "mapping"}
    return next((word for each, word in words.items() if isinstance(field, each)), "any")


def section(schema):
    """The name of a schema's section, which is walked once; two classes may have one name."""
    name = type(schema).__name__.removesuffix("Schema").lstrip("_")
    if CLASSES.setdefault(name, type(schema)) is not type(schema):
        name = f"{type(schema).__module__.rpartition('.')[2].removesuffix('_schema').title()}{name}"
        CLASSES[name] = type(schema)
    if name not in SECTIONS:
        SECTIONS[name] = {}
        SECTIONS[name] = {field.data_key or key: kind(field) for key, field in schema.fields.items()}
    return name


root = section(ClusterSchema(cluster_name="any"))
regions = files("pcluster.resources").joinpath("supported-regions").read_text(encoding="utf-8").split()
print(json.dumps({"root": root, "sections": SECTIONS, "regions": regions}))
