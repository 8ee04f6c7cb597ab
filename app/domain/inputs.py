"""What a step is given beside words: pictures, an encoder's input, the size of what a denoiser makes; and defaults."""

from __future__ import annotations

from app.domain.errors import InvalidInput
from app.domain.model import CompressedAttention, ModelSpec
from app.domain.workload import Workload

DEFAULT_SOURCE_TOKENS = 512
"""Tokens of an encoder's input where neither the workload nor the model's own position table says how many."""


def source_tokens(model: ModelSpec, workload: Workload) -> int:
    """Tokens of the other input that cross-attention reads: an encoder's, or a picture's. 0 where there is none."""
    if model.encoder is not None:
        if workload.source_len is not None:
            return workload.source_len
        return model.encoder.learned_positions or DEFAULT_SOURCE_TOKENS
    return visual_tokens(model, workload) if model.reads_other_input else 0


def visual_tokens(model: ModelSpec, workload: Workload) -> int:
    """Tokens of pictures or sound per sequence: none unless asked for, but one picture for cross-attention to it."""
    if workload.visual_tokens is not None:
        return workload.visual_tokens
    if model.reads_other_input and model.encoder is None:
        return (model.tower.item_tokens if model.tower is not None else None) or DEFAULT_SOURCE_TOKENS
    return 0


def picture(model: ModelSpec, workload: Workload) -> tuple[int, int, int]:
    """Width, height and frames of what a denoiser makes."""
    if model.denoiser is None:
        raise AssertionError("only a denoiser has a picture")
    grid = model.denoiser.latent
    return (
        grid.width if workload.width is None else workload.width,
        grid.height if workload.height is None else workload.height,
        grid.frames if workload.frames is None else workload.frames,
    )


def latent_tokens(model: ModelSpec, workload: Workload) -> int:
    """Latent tokens of one picture or clip. Raises InvalidInput for a size that leaves none."""
    width, height, frames = picture(model, workload)
    if model.denoiser is None:
        raise AssertionError("only a denoiser has latent tokens")
    grid = model.denoiser.latent
    for name, value in (("width", width), ("height", height)):
        if value < grid.spatial * grid.coarsest:
            raise InvalidInput(
                ("workload", name),
                f"{value} pixels are less than one token: use {grid.spatial * grid.coarsest} or more",
            )
    return grid.tokens(width, height, frames)


def check_inputs(model: ModelSpec, workload: Workload) -> None:
    """Raise InvalidInput for a phase or an input that the model has no use for."""

    def refuse(name: str, reason: str) -> InvalidInput:
        return InvalidInput(("workload", name), reason)

    if workload.phase == "decode" and not model.generates:
        what = "a denoiser makes a whole picture at each step" if model.denoiser else "an encoder emits no tokens"
        raise refuse("phase", f"{model.name} cannot decode: {what}. Use prefill (one forward pass) or train")
    if not model.generates and workload.context_len:
        raise refuse("context_len", f"must be 0: {model.name} caches nothing")
    if workload.source_len is not None and model.encoder is None:
        raise refuse("source_len", f"{model.name} has no encoder that reads a source: leave it out")
    if workload.visual_tokens and model.tower is None and not model.reads_other_input:
        raise refuse("visual_tokens", f"{model.name} has no vision or audio tower that is described: leave it out")
    among_words = workload.phase != "decode" and not model.reads_other_input
    if among_words and (workload.visual_tokens or 0) > workload.seq_len:
        raise refuse("visual_tokens", f"are among the {workload.seq_len} new tokens of a sequence: use at most so many")
    for name in ("width", "height", "frames"):
        if getattr(workload, name) is not None and model.denoiser is None:
            raise refuse(name, f"{model.name} makes no pictures: leave it out")
    if model.denoiser is not None and model.denoiser.latent.temporal is None and (workload.frames or 1) > 1:
        raise refuse("frames", f"{model.name} makes single pictures: use 1 or leave it out")
    modules = model.prediction.count if model.prediction else 0
    if workload.prediction_modules > modules:
        has = f"has {modules} prediction modules" if modules else "has no prediction modules"
        raise refuse("prediction_modules", f"{model.name} {has} that are described: use at most {modules}")


def beyond_context(model: ModelSpec, workload: Workload) -> str | None:
    """A sentence where a sequence is longer than the model states that it can be; None elsewhere."""
    asked = workload.context_len + workload.seq_len
    if model.denoiser is not None or model.max_position is None or asked <= model.max_position:
        return None
    return f"{asked:,} tokens of a sequence are more than the {model.max_position:,} that {model.name} states."


def input_assumptions(model: ModelSpec, workload: Workload) -> list[str]:
    """One sentence for each such input that the workload left open, and for what is left out."""
    notes: list[str] = []
    if model.denoiser is not None:
        width, height, frames = picture(model, workload)
        size = f"{width} x {height} pixels" + (f" and {frames} frames" if model.denoiser.latent.temporal else "")
        given = workload.width is not None and workload.height is not None
        notes.append(
            f"One denoiser step over the {latent_tokens(model, workload):,} latent tokens of {size}"
            + ("" if given else " (the model's default where not given)")
            + f" and {model.denoiser.text_tokens} text tokens, whatever seq_len says;"
            " text encoder and autoencoder are not counted."
        )
        notes.append("A step with classifier-free guidance runs two samples a picture: double the batch for it.")
        notes.append("Gains, rotations and norms of queries and keys are fused into the kernels around them.")
    if model.encoder is not None and workload.source_len is None:
        notes.append(f"source_len was not given: {source_tokens(model, workload)} is assumed.")
    if model.reads_other_input and model.encoder is None:
        tokens = visual_tokens(model, workload)
        if workload.visual_tokens is None:
            notes.append(f"visual_tokens was not given: one picture of {tokens} tokens is assumed.")
        elif tokens == 0:
            notes.append("Without a picture the layers that attend to it are skipped.")
    elif model.tower is not None and not visual_tokens(model, workload):
        notes.append(f"No {model.tower.modality} tokens: the {model.tower.modality} tower does not run.")
    elif model.tower_params and model.tower is None:
        notes.append("Only the language model is counted; the tower and its tokens are not.")
    if model.tower is not None and visual_tokens(model, workload):
        notes.append("The tower works on whole pictures of its own size, or on one where sizes differ.")
    if model.prediction is not None and not workload.prediction_modules:
        notes.append("Multi-token prediction modules do not run.")
    if any(a.indexer is not None for _, a in model.attention_groups()):
        notes.append(
            "Queries attend to the keys that the indexer picks; index scores run at the activations' precision, their"
            " keys are cached in at most 8 bits with a scale for each 128, and picking is fused with scoring."
        )
        if any(a.indexer is not None and not a.indexer.counted for _, a in model.attention_groups()):
            notes.append("What the indexer itself costs is left out: its dimensions are not known well enough.")
    if any(isinstance(group.mixer, CompressedAttention) for group in model.layers):
        notes.append(
            "Compressed entries are pooled in one pass; in decode what waits to be pooled is written and read once a"
            " token. Residual streams are mixed in the kernels of the norms."
        )
    if any(True for _ in model.state_groups()):
        notes.append(
            "Recurrent states stay on chip within a step and are kept in the precision of the cache; prefill and"
            " training use chunks of 16 tokens, the narrowest products of a matrix unit."
        )
    if far := beyond_context(model, workload):
        notes.append(far)
    if model.kind == "encoder" and workload.phase == "train":
        notes.append("Training an encoder has no loss of its own here: only the stack's passes are counted.")
    return notes
