"""How an engine moves KV: the backend it was told, the rails NIXL opened, the protocol UCX chose."""

from __future__ import annotations

from toolkit.doctor.check import Check
from toolkit.doctor.engine_facts import EngineFacts
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.wanted import Wanted

RAILS_OF_A_GPU = 2
PUBLISHED = "the published p5en environment: 16 rails, 2 for each GPU, with NIXL_LOG_LEVEL=DEBUG"
RAIL_COUNTS = "https://github.com/ai-dynamo/nixl/issues/1161"
UCX_GET = "measured by this project on an H200: reads over tcp ran at 0.4 GB/s, 8 to 128 GB/s over cuda_ipc"
DEBUG = "start the engine with NIXL_LOG_LEVEL=DEBUG (`legs.prefill.env`, `legs.decode.env`) and look again"


def has_scripts(facts: EngineFacts, _wanted: Wanted) -> bool:
    return bool(facts.backends)


def on_efa_with_log(facts: EngineFacts, wanted: Wanted) -> bool:
    return facts.log is not None and wanted.efa_devices != 0 and "UCX" not in wanted.backends


def on_ucx_with_log(facts: EngineFacts, wanted: Wanted) -> bool:
    return facts.log is not None and (bool(facts.ucx_rows) or "UCX" in wanted.backends)


def backends(facts: EngineFacts, wanted: Wanted) -> Verdict:
    lines = tuple(f"{job}: backends {', '.join(each)}" for job, each in facts.backends.items())
    if len(set(facts.backends.values())) > 1:
        return error(
            "the run's engines use different backends",
            *lines,
            cause="prefill and decode can read each other's KV over a common backend only",
            next_step="set kv.backends once, for both legs, and submit again",
        )
    if wanted.efa_devices and any("LIBFABRIC" not in each for each in facts.backends.values()):
        return warning(
            "the engines use UCX though the nodes have EFA",
            *lines,
            cause="UCX does not use EFA's reads as LIBFABRIC does; KV goes over TCP or one device",
            next_step="set kv.backends to [LIBFABRIC] and submit again",
        )
    return ok("one backend on every engine", *lines)


def plugin(facts: EngineFacts, wanted: Wanted) -> Verdict:
    """NIXL tries every plugin it finds; only those of the backends that are used matter."""
    used = wanted.backends or ("LIBFABRIC", "UCX")
    lines = [line for line in facts.plugin_failures if any(name in line for name in used)]
    if not lines:
        return ok("NIXL loaded its plugin")
    return error(
        "NIXL could not load the plugin of its backend",
        *lines[:4],
        cause="a library that the plugin needs is missing or too old: libfabric.so.1 of EFA, libcuda.so.1",
        next_step="`ldconfig -p | grep libfabric` must name /opt/amazon/efa; install the EFA software again",
    )


def rails(facts: EngineFacts, wanted: Wanted) -> Verdict:
    found = facts.rails
    if not found:
        raise Unread(f"the log has no line `Created rail`; {DEBUG}")
    lines = facts.rail_lines()
    foreign = sorted({rail.provider for rail in found} - {"efa", ""})
    if foreign:
        return error(
            f"NIXL fell back to the provider {', '.join(foreign)}",
            *lines,
            cause="libfabric has no provider efa in the engine's environment; figures over TCP mean nothing",
            next_step="`toolkit doctor node` on that node: efa.provider, efa.devices",
        )
    devices = {rail.device for rail in found}
    expected = wanted.efa_devices or 16
    if len(devices) == expected:
        return ok(f"NIXL opened {expected} rails", *lines)
    return error(
        f"NIXL opened {len(devices)} rails, {expected} are expected",
        *lines,
        cause="the node shows fewer EFA devices, or a setting narrows them (NIXL_LIBFABRIC_*, FI_EFA_IFACE)",
        next_step="`toolkit doctor node` on that node: efa.devices; take such settings out of legs.*.env",
    )


def rails_of_gpus(facts: EngineFacts, wanted: Wanted) -> Verdict:
    mapped = facts.rails_of_gpu
    if not mapped:
        raise Unread(f"the log has no line `mapped to rail`; {DEBUG}")
    lines = tuple(
        f"GPU {gpu or 'unnamed'}: rails {', '.join(map(str, sorted(numbers)))}"
        for gpu, numbers in sorted(mapped.items())
    )
    wrong = {gpu for gpu, numbers in mapped.items() if gpu and len(numbers) != RAILS_OF_A_GPU}
    if wrong:
        return error(
            f"{len(wrong)} of {len(mapped)} GPUs are not on {RAILS_OF_A_GPU} rails",
            *lines,
            *facts.rail_lines(),
            cause="NIXL did not find the EFA devices of the GPU's PCIe switch: transfers cross the machine",
            next_step="take NIXL's and libfabric's device settings out of legs.*.env; compare `lstopo`",
        )
    if wanted.tensor_parallel and "" not in mapped and len(mapped) < wanted.tensor_parallel:
        return error(
            f"{len(mapped)} GPUs registered their KV, tensor_parallel is {wanted.tensor_parallel}",
            *lines,
            cause="the log is of another run or was cut, or a worker has not come as far",
            next_step="read the whole log of a ready engine",
        )
    return ok(f"{len(mapped)} GPUs, each on the rails of its PCIe switch", *lines)


def ucx_get(facts: EngineFacts, _wanted: Wanted) -> Verdict:
    reads = [row for row in facts.ucx_rows if "ucp_get" in row.operation]
    if not reads:
        raise Unread(
            "the log has no table of UCX for reads (ucp_get); start the engine with UCX_PROTO_INFO=y"
        )
    # On a machine without GPUs the engines' memory is the host's, where this is the ordinary way.
    reads = [row for row in reads if "cuda" in row.operation]
    slow = [row for row in reads if "emulation" in row.protocol or "tcp" in row.transport]
    if not slow:
        return ok("UCX reads without a detour", *dict.fromkeys(row.line for row in reads))
    return error(
        f"UCX reads by {slow[0].protocol} over {slow[0].transport}",
        *dict.fromkeys(row.line for row in slow),
        cause="within a node UCX does not use cuda_ipc for reads where it sees no NVLink; between nodes it "
        "found no transport that reaches GPU memory",
        next_step="within a node set UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on in legs.*.env; on EFA use LIBFABRIC",
    )


CHECKS: tuple[Check[EngineFacts], ...] = (
    Check(
        "nixl.backends",
        "`backends` in the rendered scripts of the newest run",
        PUBLISHED,
        backends,
        has_scripts,
    ),
    Check(
        "nixl.plugin",
        "`Failed to load plugin` in an engine's log (--log)",
        "seen by this project with nixl 1.4.1 on a machine without libfabric",
        plugin,
        lambda facts, _: facts.log is not None,
    ),
    Check("nixl.rails", "`Created rail` in an engine's log (--log)", RAIL_COUNTS, rails, on_efa_with_log),
    Check(
        "nixl.rails_of_gpus",
        "`mapped to rail` in an engine's log (--log): 2 for each GPU",
        PUBLISHED,
        rails_of_gpus,
        on_efa_with_log,
    ),
    Check(
        "nixl.ucx_get",
        "UCX's protocol table in an engine's log (--log, UCX_PROTO_INFO=y): how memory is read",
        UCX_GET,
        ucx_get,
        on_ucx_with_log,
    ),
)
