"""Schedule a report about a refused request, to be written when the client has its response (`explain`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from dragoman.errors import DragomanError, UpstreamFault
from dragoman.gateway.backend import Backend
from dragoman.gateway.context import RequestContext
from dragoman.gateway.explain import ExplainJob, PendingReport
from dragoman.gateway.jobs import PlanJob
from dragoman.gateway.retry_policy import Refused
from dragoman.http.client.client import ClientResponse
from dragoman.wire.http import HttpResponse

if TYPE_CHECKING:
    from dragoman.gateway.attempts import ClientRequest


def schedule_report(
    context: RequestContext,
    client_request: ClientRequest,
    backend: Backend,
    received: ClientResponse | None,
    error: DragomanError,
) -> None:
    """Schedule a report about a refusal, to be written when the response has been sent. The last refusal counts."""
    services, exchange = context.services, context.exchange
    is_wanted = services.refusals.enabled and client_request.can_be_explained
    if not is_wanted or not isinstance(error, UpstreamFault):
        return
    if isinstance(error, Refused):
        refusal = error.response
    elif received is not None and received.status:  # The stream began with status 200 and contains an error.
        refusal = HttpResponse(received.status, received.headers, backend.dialect.codec.render_fault(error.fault))
    else:
        return
    model, large = context.record.used_model, client_request.large
    if large is not None:
        job = large.job(backend, model, services.response_store, client_request.found)
    else:
        head = structs.replace(exchange.request, body=b"")
        job = PlanJob(
            head,
            context.upstreams.bounds,
            backend.dialect,
            model,
            backend.upstream.settings,
            session=client_request.session.key,
        )
    names, secrets = (exchange.id, context.client.name, backend.name), services.log.redactor.known_secrets()
    explain_job = ExplainJob(job, names, client_request.signed, refusal, error.fault, secrets)
    job_process = None if large is None else large.job_process
    pending = PendingReport(
        explain_job,
        context.client,
        exchange.request.body,
        services.response_store,
        exchange.owner,
        job_process,
        client_request.found,
    )
    context.record.on_finished = partial(services.report_queue.add, pending, services.refusals)
