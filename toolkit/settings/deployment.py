"""The settings of one deployment: what is served, by which legs, how KV moves, and the sweep over it.

Defaults follow the published system: vLLM 0.29.0 with NIXL 1.4.1, one prefill and one decode engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from toolkit.settings.base import (
    VARIABLE_PATTERN,
    Count,
    EnvironmentValue,
    Folder,
    Name,
    Port,
    Seconds,
    Section,
    Switch,
    Text,
    Word,
    disagree,
)
from toolkit.settings.target import EmbeddedTarget, Target


class Model(Section):
    name: Text = Field(
        description="hub id, folder (starting with /, ./ or ../), or, without a slash on the embedded "
        "target, a model the toolkit makes itself"
    )
    served_name: Text = Field(description="the name clients send as `model`")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    max_model_len: Count = 32768

    @field_validator("name")
    @classmethod
    def _home_is_written_out(cls, name: str) -> str:
        if name.startswith("~"):
            raise ValueError("~ is not expanded here; write the whole path")
        return name


class Leg(Section):
    """Equal servers of one role."""

    replicas: Annotated[Count, Field(le=500)] = Field(1, description="servers of this role, one node each")
    tensor_parallel: Annotated[Count, Field(le=1024)] = Field(1, description="GPUs of one server")
    prefix_caching: Switch = True
    max_num_seqs: Count = 8
    port: Port = 8100
    side_channel_port: Port = Field(5600, description="NIXL handshake port of a server")
    extra_args: tuple[Word, ...] = Field((), description="more arguments of `vllm serve`, one a word")
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], EnvironmentValue] = Field(
        {}, description="environment of the engine; no secrets, it is written into the job script"
    )
    time_limit_minutes: Count = Field(720, description="Slurm time limit of the job")

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.port == self.side_channel_port:
            raise disagree("port and side_channel_port must differ", "port", "side_channel_port")
        return self

    @field_validator("env", mode="before")
    @classmethod
    def _numbers_are_text(cls, env: object) -> object:
        """YAML's bare numbers are meant as text here; a boolean or a list is a mistake."""
        if not isinstance(env, dict):
            return env
        return {k: str(v) if type(v) in (int, float) else v for k, v in env.items()}


class PrefillLeg(Leg):
    prefix_caching: Switch = False


class DecodeLeg(Leg):
    port: Port = 8200


class Legs(Section):
    prefill: PrefillLeg = PrefillLeg()
    decode: DecodeLeg = DecodeLeg()


MOST_TOKENS = 10_000_000


def _tokens_or_auto(value: Any, either: ValidatorFunctionWrapHandler) -> Any:
    """One sentence for the user in place of an error of each kind that the value is not."""
    try:
        return either(value)
    except ValidationError as error:
        raise ValueError(f"should be a whole number of tokens from 0 to {MOST_TOKENS}, or auto") from error


Threshold = Annotated[
    Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)] | Literal["auto"], WrapValidator(_tokens_or_auto)
]


class Kv(Section):
    """Two-way KV transfer; names and defaults of vLLM's `kv_connector_extra_config`."""

    bidirectional: Switch = Field(True, description="bidirectional_kv_xfer, equal on both roles")
    recompute_threshold: Threshold = Field(
        64,
        description="tokens; below it prefill recomputes, from it on it reads decode's blocks; auto: prefill "
        "measures it",
    )
    decoder_blocks_ttl: Count = Field(480, description="seconds decode keeps the blocks of a finished turn")
    backends: tuple[Literal["LIBFABRIC", "UCX"], ...] = Field(("LIBFABRIC",), min_length=1)
    buffer_device: Literal["cuda", "cpu"] = "cuda"
    stats_interval: Seconds = Field(1, description="seconds between an engine's `KV Transfer metrics` lines")


class Router(Section):
    port: Port = 8000
    ttl: Seconds = Field(450, description="seconds a saved handle is used; below kv.decoder_blocks_ttl")
    path: Literal["auto", "prefill", "readback", "decode-local"] = Field(
        "auto", description="the path of turns that may take it; auto: the one measured to be the quickest"
    )
    decode_local_tokens: Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)] = Field(
        512, description="largest number of new tokens of a turn that decode may compute alone"
    )
    lease_secret_file: Folder | None = Field(
        None,
        description="file on the cluster with a secret of the engines and the router, closed to others: for "
        "decode's lease routes, and engines use only KV handles signed with it; without one the router "
        "neither claims nor renews leases",
    )
    lease_hold: Seconds | None = Field(
        None, description="seconds for which leases are renewed; default: they end with router.ttl"
    )
    keep_map: Switch = Field(
        False,
        description="the map of conversations outlives a restart, in the run's folder (no NFS or Lustre)",
    )
    max_concurrent: Count = Field(1024, description="requests answered at the same time; others wait")
    queue_timeout: Seconds = Field(30, description="seconds a request may wait before it gets 429")
    time_limit_minutes: Count = 720

    @field_validator("lease_secret_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError("must be an absolute path on the cluster's nodes, without ~")
        return path

    @model_validator(mode="after")
    def _hold_renews(self) -> Self:
        if self.lease_hold is None:
            return self
        if self.lease_hold <= self.ttl:
            raise disagree(
                f"lease_hold ({self.lease_hold:g} s) must be above ttl ({self.ttl:g} s), or none is renewed",
                "lease_hold",
                "ttl",
            )
        if self.lease_secret_file is None:
            raise disagree(
                "lease_hold needs lease_secret_file: decode's lease routes are closed to other nodes without",
                "lease_hold",
                "lease_secret_file",
            )
        return self


class Sweep(Section):
    """OFF against ON over prompt lengths, in conversations of several turns."""

    prompt_lengths: tuple[Count, ...] = Field((2048, 4096, 8192, 16384, 24576), min_length=1, max_length=100)
    turns: Annotated[int, Field(strict=True, ge=2, le=100)] = Field(3, description="turns of a conversation")
    repeats: Annotated[Count, Field(le=1000)] = Field(2, description="conversations per prompt length")
    concurrency: Annotated[Count, Field(le=1024)] = Field(
        1, description="conversations held at the same time"
    )
    output_tokens: Count = Field(64, description="tokens generated each turn")
    turn_tokens: Count = Field(128, description="tokens of each later user message, about")
    seed: Annotated[int, Field(strict=True)] = 0
    identical: Literal["tokens", "first_token"] = Field(
        "tokens",
        description="what ON and OFF must share: every token, or (bf16 on GPU, where near-ties part) "
        "the first token's log-probability within 0.15",
    )
    time_limit_minutes: Count = 240

    @field_validator("prompt_lengths")
    @classmethod
    def _rising(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if list(lengths) != sorted(set(lengths)):
            raise ValueError("must rise, without repeats")
        return lengths


class Deployment(Section):
    name: Name
    target: Target
    model: Model
    legs: Legs = Legs()
    kv: Kv = Kv()
    router: Router = Router()
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def _ttl_below_decodes(self) -> Self:
        if self.router.ttl >= self.kv.decoder_blocks_ttl:
            raise disagree(
                f"router.ttl ({self.router.ttl:g} s) must be below kv.decoder_blocks_ttl "
                f"({self.kv.decoder_blocks_ttl} s), or the router offers blocks that decode has freed",
                "router.ttl",
                "kv.decoder_blocks_ttl",
            )
        return self

    @model_validator(mode="after")
    def _longest_prompt_fits(self) -> Self:
        longest = self.sweep.prompt_lengths[-1] + self.sweep.output_tokens
        if longest > self.model.max_model_len:
            raise disagree(
                f"sweep.prompt_lengths: {self.sweep.prompt_lengths[-1]} + sweep.output_tokens "
                f"{self.sweep.output_tokens} exceeds model.max_model_len {self.model.max_model_len}",
                "sweep.prompt_lengths",
                "sweep.output_tokens",
                "model.max_model_len",
            )
        return self

    @model_validator(mode="after")
    def _first_turn_is_left(self) -> Self:
        grown = (self.sweep.turns - 1) * (self.sweep.output_tokens + self.sweep.turn_tokens)
        if self.sweep.prompt_lengths[0] <= grown:
            raise disagree(
                f"sweep.prompt_lengths: {self.sweep.prompt_lengths[0]} leaves nothing for the first turn: "
                f"{self.sweep.turns - 1} later turns add {grown} tokens",
                "sweep.prompt_lengths",
                "sweep.turns",
                "sweep.output_tokens",
                "sweep.turn_tokens",
            )
        return self

    @model_validator(mode="after")
    def _network_holds_every_node(self) -> Self:
        if not isinstance(self.target, EmbeddedTarget):
            return self
        engines = self.legs.prefill.replicas + self.legs.decode.replicas
        if engines + 1 > self.target.most_nodes:
            raise disagree(
                f"{engines} replicas and the router need {engines + 1} nodes, but target.network "
                f"{self.target.network} has room for {self.target.most_nodes}",
                "legs.prefill.replicas",
                "legs.decode.replicas",
                "target.network",
            )
        return self
