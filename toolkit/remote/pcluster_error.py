"""pcluster's messages that don't help, told so that they do; its own words are always kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.remote.masked import masked
from toolkit.remote.pcluster_answer import Outcome

# 404 texts of pcluster/api/controllers and pcluster/models in 3.14.2 and 3.16.1.
_MISSING = re.compile(
    r"[Cc]luster '?[^' ]+'? does not exist"
    r"|No image or stack associated with ParallelCluster image id"
    r"|CloudFormation Stack for (?:Image|cluster) \S+ does not exist"
    r"|The specified log (?:stream \S+|group) does not exist"
    # Also its answer for a stream that is not there, and while there is no log group yet.
    r"|CloudWatch logging is not enabled for cluster"
)


class PclusterRefused(ToolkitError):
    """pcluster refused a configuration. `outcome` has its validation messages and the change set."""

    def __init__(self, command: str, outcome: Outcome) -> None:
        words = [outcome.message, *map(str, outcome.validation)]
        words += [str(change) for change in outcome.change_set if change.refusal]
        known = _recognised(outcome.message)
        what = f"`{command}` was refused: " + "\n  ".join(masked(word) for word in words if word)
        if known:
            what += f"\n{known.meaning}"
        super().__init__(what, next_step=known.next_step if known else _correct(outcome))
        self.outcome = outcome


@dataclass(frozen=True)
class _Known:
    pattern: str
    meaning: str
    next_step: str


_KNOWN = (
    _Known(
        r"Unable to find node executable|Node\.js",
        "pcluster makes its CloudFormation templates with a library that runs in Node.js.",
        "run the command again: the toolkit brings its own Node.js when the machine has none it can use",
    ),
    _Known(
        r"Unable to locate credentials|NoCredentials|Partial credentials|profile \(.*\) could not be found",
        "No AWS credentials were found.",
        "`aws sts get-caller-identity` must work in this shell: set AWS_PROFILE, or log in with `aws sso "
        "login`",
    ),
    _Known(
        r"ExpiredToken|token included in the request is expired|SSO session.*(?:expired|invalid)"
        r"|RequestExpired"
        r"|Token has expired",
        "The AWS credentials have expired.",
        "log in again (`aws sso login`, or take new session credentials), then run the command again",
    ),
    _Known(
        r"InvalidClientTokenId|security token included in the request is invalid|AuthFailure"
        r"|SignatureDoesNotMatch|UnrecognizedClient",
        "AWS does not accept these credentials.",
        "see which are in use with `aws sts get-caller-identity`; a wrong clock on this machine has the "
        "same effect",
    ),
    _Known(
        r"is not authorized to perform|AccessDenied|UnauthorizedOperation|lacks permissions",
        "The credentials are valid, but may not do this.",
        "let an administrator allow the action that is named; AWS lists what pcluster needs under "
        "'IAM permissions in AWS ParallelCluster'",
    ),
    _Known(
        r"[Rr]egion needs to be set|must specify a region|NoRegion|region.*not (?:set|supported)",
        "No region reached pcluster, or not one that it knows.",
        "set target.region in the deployment file",
    ),
    _Known(
        r"Could not connect to the endpoint|EndpointConnectionError|Connect timeout|Read timeout"
        r"|Failed to establish a new connection|SSL validation failed|ProxyError",
        "AWS was not reached.",
        "see that this machine reaches the region's endpoints; check AWS_ENDPOINT_URL and the proxy "
        "variables",
    ),
    _Known(
        r"update can be performed only with the same ParallelCluster version",
        "A cluster is updated only by the version that created it; any newer 3.x may list, describe or "
        "delete it.",
        "set target.version to the one named, or create a new cluster beside it",
    ),
    _Known(
        r"Unable to parse response",
        "An answer was not one of AWS. Most often something between this machine and AWS answers (a proxy, a "
        "sign-in page, an endpoint of a simulation without this call).",
        "check AWS_ENDPOINT_URL and the proxy variables; pcluster's log names the call",
    ),
    _Known(
        r"list index out of range",
        "pcluster looked something up, most often a file system of SharedStorage, and AWS knows nothing "
        "by that id.",
        "see that each FileSystemId and VolumeId exists in this region and account",
    ),
    _Known(
        r"'KeyType'",
        "The key pair's type is not known.",
        "use a key pair of type ed25519: Ubuntu takes no RSA keys with ParallelCluster",
    ),
    _Known(
        r"(?:Cluster|image|Stack) \S+ already exists|with the same name already exists|AlreadyExists",
        "There is a cluster, image or stack of that name.",
        "choose another name, or delete that one first",
    ),
    _Known(
        r"[Ll]imit [Ee]xceeded|Throttling|Rate exceeded",
        "AWS answers too many calls of this account at the moment.",
        "wait a minute, then run the command again",
    ),
)


def explain(command: str, message: str) -> ToolkitError:
    """The error for a message of `command`: pcluster's words, what they mean where known, the next step."""
    message = masked(message)
    known = _recognised(message)
    if known is None:
        return ToolkitError(
            f"`{command}` failed: {message}", next_step="pcluster's own log has the calls that it made"
        )
    return ToolkitError(f"`{command}` failed: {message}\n{known.meaning}", next_step=known.next_step)


def is_missing(message: str) -> bool:
    """True if pcluster says that the cluster, image or log stream it was asked for is not there."""
    return bool(_MISSING.search(message))


def _recognised(message: str) -> _Known | None:
    return next((known for known in _KNOWN if re.search(known.pattern, message)), None)


def _correct(outcome: Outcome) -> str:
    if any(message.level == "ERROR" for message in outcome.validation):
        return "correct what the ERROR lines name, then run the command again"
    if any(change.refusal for change in outcome.change_set):
        return "do what stands behind each value that can't be changed so, or leave that value as it is"
    return "correct the configuration; pcluster's own log has the calls that it made"
