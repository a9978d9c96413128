"""From a decode stream to the client: events pass, the new handle is kept, a broken stream is told."""

from __future__ import annotations

from toolkit.router.clientwatch import ClientGone, ClientWatch
from toolkit.router.exchange import Exchange, StreamAnswer
from toolkit.router.kvmember import NotAnObject
from toolkit.router.refusal import Refusal
from toolkit.router.reply import Reply
from toolkit.router.sse import EventRelay, EventTooLarge
from toolkit.router.upstream import EngineFailed, engine_failures


async def relay_stream(answer: StreamAnswer, exchange: Exchange, reply: Reply, watch: ClientWatch) -> bool:
    """Sends the stream to its end; False when decode broke it and the client got an error event.

    Raises:
        ClientGone: the client left; decode's request was aborted.
    """
    relay = EventRelay()
    try:
        with watch.aborting(answer.response.close):
            await reply.start_stream(answer.response.status, answer.headers)
            with engine_failures(answer.leg):
                await _pass_events(answer, relay, exchange, reply)
    except (EngineFailed, NotAnObject, EventTooLarge) as failure:
        if watch.gone:
            if relay.done:
                # Some clients hang up as soon as they have read the last event.
                return True
            raise ClientGone from None
        why = failure.why if isinstance(failure, EngineFailed) else "sent an event that cannot be relayed"
        await reply.break_off(Refusal(502, f"The decode engine {why} in the middle of its answer."))
        return False
    finally:
        answer.response.close()
    return True


async def _pass_events(answer: StreamAnswer, relay: EventRelay, exchange: Exchange, reply: Reply) -> None:
    chunk = answer.first
    while chunk:
        ready = relay.feed(chunk)
        if relay.captured is not None:
            exchange.keep(answer.leg, relay.captured)
            relay.captured = None
        if ready:
            await reply.chunk(ready)
        chunk = await answer.response.content.readany()
    rest = relay.finish()
    if rest:
        await reply.chunk(rest)
    await reply.end()
