"""Links that are remembered, facts that people add, and findings that follow both."""

from __future__ import annotations

import pytest

from app.domain.errors import InvalidInput
from app.services import links, run_changes, runs
from app.services.context import Context
from app.services.run_changes import RunPatch
from app.services.upload_run import upload_file
from app.storage.errors import NotFound

from .native_runs import native


def patched(context: Context, run: str, **fields: object) -> runs.RunView:
    return run_changes.update_run(context, run, RunPatch.model_validate(fields))


def sent(context: Context, **changes: object) -> runs.RunView:
    outcome = upload_file(context, native(**changes), "a.json")
    return runs.get_view(context, outcome.runs[0].id)


def test_a_corrected_link_is_used_for_the_next_file_with_the_same_words(context: Context):
    hint = "NVIDIA H100 80GB HBM3"
    first = sent(context, hardware=hint)
    assert first.run.hardware_id == "nvidia-h100-sxm"
    assert first.bases["hardware"].kind == "guess"
    assert hint in first.bases["hardware"].text
    corrected = patched(context, first.run.id, hardware="h200-sxm")
    assert corrected.bases["hardware"].kind == "remembered"
    second = sent(context, hardware="nvidia  h100 80gb hbm3", name="second")
    assert (second.run.hardware_id, second.run.hardware_is_guess) == ("nvidia-h200-sxm", False)
    assert "Remembered" in second.bases["hardware"].text
    (link,) = links.remembered_links(context)
    assert (link.kind, link.hint, link.target_id) == ("hardware", hint, "nvidia-h200-sxm")
    assert links.link_json(context, link)["exists"] is True
    links.forget_link(context, link.id)
    third = sent(context, hardware=hint, name="third")
    assert (third.run.hardware_id, third.run.hardware_is_guess) == ("nvidia-h100-sxm", True)
    assert runs.get_view(context, second.run.id).run.hardware_id == "nvidia-h200-sxm"
    with pytest.raises(NotFound):
        links.forget_link(context, link.id)


def test_words_that_mean_nothing_here_can_be_taught_and_taken_back(context: Context):
    first = sent(context, model="/mnt/checkpoints/our-8b-v3")
    assert first.run.model_id is None
    assert "names nothing here" in first.bases["model"].text
    patched(context, first.run.id, model="llama-3.1-8b")
    assert sent(context, model="/mnt/checkpoints/our-8b-v3", name="second").run.model_id == "llama-3.1-8b"
    # another choice replaces the first
    patched(context, first.run.id, model="qwen3-8b")
    assert [link.target_id for link in links.remembered_links(context)] == ["qwen3-8b"]


def test_confirming_the_guess_remembers_nothing_and_going_back_to_it_forgets(context: Context):
    first = sent(context)
    assert patched(context, first.run.id, hardware="nvidia-h100-sxm").bases["hardware"].kind == "stated"
    assert links.remembered_links(context) == ()
    patched(context, first.run.id, hardware="nvidia-h200-sxm", remember=False)
    assert links.remembered_links(context) == ()
    patched(context, first.run.id, hardware="nvidia-b200-sxm")
    assert len(links.remembered_links(context)) == 1
    patched(context, first.run.id, hardware="nvidia-h100-sxm")
    assert links.remembered_links(context) == ()


def test_a_memory_of_something_that_is_gone_is_not_used(context: Context):
    from app.storage import links as stored

    with context.storage.write() as session:
        stored.remember(session=session, kind="hardware", hint_key="h100sxm", hint="H100 SXM", target_id="gone")
    assert sent(context).run.hardware_id == "nvidia-h100-sxm"


def test_facts_are_added_checked_and_taken_back(context: Context):
    run = sent(context).run.id
    lacking = {fact.key for fact in runs.get_view(context, run).missing}
    assert "version" in lacking
    view = patched(context, run, facts={"version": "vLLM 0.11.0", "exposed_comm_share": "12 %"})
    assert view.run.facts == {"version": "vLLM 0.11.0", "exposed_comm_share": pytest.approx(0.12)}
    assert "version" not in {fact.key for fact in view.missing}
    main = view.analysis.main
    assert main is not None
    assert {part.term for part in main.gap_terms} >= {"exposed_communication"}
    view = patched(context, run, facts={"version": None})
    assert "version" not in view.run.facts
    for bad in ({"nonsense": "x"}, {"exposed_comm_share": 12}, {"exposed_comm_share": "much"}):
        with pytest.raises(InvalidInput):
            patched(context, run, facts=bad)


def test_findings_follow_the_links_and_are_never_stale(context: Context):
    view = sent(context, hardware="H100 SXM", metrics={"tpot_s": {"mean": 0.004}})
    assert [f.check for f in view.findings if f.severity == "error"] == ["faster-than-bound"]
    assert "faster-than-bound" not in {f.check for f in patched(context, view.run.id, hardware="b200-sxm").findings}
    unlinked = patched(context, view.run.id, hardware=None)
    assert "device" in next(f.message for f in unlinked.findings if f.check == "missing-facts")
