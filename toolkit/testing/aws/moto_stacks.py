"""Gives pcluster's stacks their life: what a creation, update, deletion or image build brings along."""

from __future__ import annotations

from typing import Any

from moto.cloudformation.models import CloudFormationBackend
from moto.cloudformation.responses import CloudFormationResponse

from toolkit.testing.aws import fleet, image_build, timeline
from toolkit.testing.aws.account import Clients
from toolkit.testing.aws.moto_refusals import fault_of
from toolkit.testing.aws.moto_resources import tag_file_systems
from toolkit.testing.aws.simulation import simulation
from toolkit.testing.aws.stack_life import Life, lives, resources_of, roll_back, stack_itself
from toolkit.testing.aws.stories import Story, tell
from toolkit.testing.aws.timeline import Fault

VERSION_TAG, IMAGE_TAG = "parallelcluster:version", "parallelcluster:image_id"


def install(clients: Clients) -> None:
    backend: Any = CloudFormationBackend
    _create(clients)
    _update(backend, clients)
    _delete(backend, clients)
    _notice_describes(backend)


def _create(clients: Clients) -> None:
    """Where the request is answered, which leaves nested stacks out."""
    response: Any = CloudFormationResponse
    original = response.create_stack

    def create(self: Any) -> Any:
        answer = original(self)
        stack = self.cloudformation_backend.get_stack(answer.result["StackId"])
        # Moto ignores it; it decides whether a failed cluster can still be looked at.
        stack.disable_rollback = self._get_param("DisableRollback") in (True, "true")
        if life := _life_of(stack, clients):
            tag_file_systems(stack)
            stack.events.clear()
            lives.begin(life)
        return answer

    response.create_stack = create


def _life_of(stack: Any, clients: Clients) -> Life | None:
    """None for a stack that is there at once, as are all that pcluster did not make."""
    refused = fault_of(stack)
    if VERSION_TAG not in stack.tags:
        return _failure_life(stack, refused) if refused else None
    if IMAGE_TAG in stack.tags:
        return _image_life(stack, clients, refused)
    return _cluster_life(stack, clients, refused)


def _failure_life(stack: Any, fault: Fault) -> Life:
    unfolds = _creation(stack, fault, rollback=not stack.disable_rollback)
    stages = [] if stack.disable_rollback else [(1.0, lambda: roll_back(stack, unfolds.left))]
    return Life(stack, unfolds, 0.0, stages)


def _cluster_life(stack: Any, clients: Clients, refused: Fault | None) -> Life:
    scenario = simulation.scenario
    cluster = fleet.Cluster(clients, stack)
    setting = cluster.setting()
    story = Story(refused, nodes=False, fleet="") if refused else tell(scenario.outcome, setting)
    unfolds = _creation(stack, story.fault, rollback=not stack.disable_rollback)
    stages = [
        (0.4, lambda: cluster.write_head_logs(story.head)),
        (0.7, lambda: cluster.launch(story)),
        (0.8, lambda: cluster.set_status(story.fleet)),
    ]
    if story.fault and story.fault.resource != timeline.HEAD_WAIT:
        stages = [(0.0, cluster.terminate)]
    if story.fault and not stack.disable_rollback:
        stages += [(1.0, cluster.terminate), (1.0, lambda: roll_back(stack, unfolds.left))]
    return Life(stack, unfolds, scenario.create_seconds, stages)


def _image_life(stack: Any, clients: Clients, refused: Fault | None) -> Life:
    scenario = simulation.scenario
    build = image_build.Build(clients, stack, scenario)
    unfolds = _creation(stack, refused or build.fault, rollback=False)
    stages = [] if refused else [(0.1, build.write_log)]
    if refused is None and build.fault is None:
        stages.append((1.0, build.publish))
    return Life(stack, unfolds, scenario.image_seconds, stages)


def _creation(stack: Any, fault: Fault | None, *, rollback: bool) -> timeline.Timeline:
    return timeline.creation(stack_itself(stack), resources_of(stack), fault, rollback=rollback)


def _update(backend: Any, clients: Clients) -> None:
    original = backend.update_stack

    def update(self: Any, name: str, *rest: Any, **options: Any) -> Any:
        stack = original(self, name, *rest, **options)
        if VERSION_TAG in stack.tags:
            del stack.events[-2:]  # moto's own two
            cluster = fleet.Cluster(clients, stack)
            story = tell("complete", cluster.setting())
            unfolds = timeline.update(stack_itself(stack), resources_of(stack))
            stages = [(1.0, lambda: cluster.launch(story))]
            lives.begin(Life(stack, unfolds, simulation.scenario.update_seconds, stages))
        return stack

    backend.update_stack = update


def _delete(backend: Any, clients: Clients) -> None:
    """A deleted stack stays DELETE_IN_PROGRESS for a while: moto's is gone at once, and pcluster, which
    describes it by name after the call, then takes its own success for a failure."""
    original = backend.delete_stack

    def delete(self: Any, name: str) -> None:
        stack = next((each for each in self.stacks.values() if name in (each.name, each.stack_id)), None)
        if stack is None or VERSION_TAG not in stack.tags:
            original(self, name)
            return
        cluster = fleet.Cluster(clients, stack)
        ours = IMAGE_TAG not in stack.tags and not simulation.scenario.leave_instances
        stages = [(0.3, cluster.terminate)] if ours else []
        stages.append((1.0, lambda: original(self, stack.stack_id)))
        unfolds = timeline.deletion(stack_itself(stack), resources_of(stack))
        lives.begin(Life(stack, unfolds, simulation.scenario.delete_seconds, stages, unseen=True))
        stack.status = "DELETE_IN_PROGRESS"

    backend.delete_stack = delete


def _notice_describes(backend: Any) -> None:
    original = backend.describe_stacks

    def describe(self: Any, name: str) -> Any:
        stacks = original(self, name)
        for stack in stacks:
            lives.seen(stack.stack_id)
        return stacks

    backend.describe_stacks = describe
