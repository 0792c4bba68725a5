"""Views → plain JSON values: what a terminal shows, for another program."""

from typing import Any

from streamdata.tools.show.views.model import (
    ChatView,
    FieldView,
    FramesView,
    ImageView,
    NumbersView,
    RecordView,
    SampleView,
    TextView,
    TokensView,
    Value,
)

Json = dict[str, Any]


def sample_json(view: SampleView) -> Json:
    """A sample. Texts are as they are in it: JSON writes control characters by their numbers."""
    place: Json = {"number": view.number, "step": view.step, "source": view.source, "url": view.url or None}
    place |= {"key": view.key} if view.url else {"index": view.index}
    return {
        **{name: value for name, value in place.items() if value is not None},
        "fields": [_field(field) for field in view.fields],
        "num_records": view.num_records,
        "records": [_record(record) for record in view.records],
    }


def _record(record: RecordView) -> Json:
    return {"where": record.where, "fields": [_field(field) for field in record.fields]}


def _field(field: FieldView) -> Json:
    head: Json = {"name": field.name, "kind": field.kind}
    head |= {"type": field.type} if field.shape is None else {"shape": list(field.shape), "dtype": field.dtype}
    return head | _value(field.value)


def _value(value: Value) -> Json:
    match value:
        case TextView():
            return {"text": value.text, "cut": value.num_cut}
        case NumbersView():
            return {"text": value.text, "summary": value.summary}
        case ImageView():
            return _image(value)
        case FramesView():
            return {"num_frames": value.num_frames, "frames": [_image(frame) for frame in value.frames]}
        case ChatView():
            messages = [
                {"role": each.role, "text": each.text.text, "cut": each.text.num_cut, "images": len(each.images)}
                for each in value.messages
            ]
            return {"num_messages": value.num_messages, "messages": messages}
        case TokensView():
            return _tokens(value)


def _image(view: ImageView) -> Json:
    if view.image is None:
        return {"problem": view.problem}
    return {"width": view.width, "height": view.height, "mode": view.mode}


def _tokens(view: TokensView) -> Json:
    segments = [
        {
            "role": segment.role,
            "tokens": segment.num_tokens,
            "runs": [
                {
                    "trained": run.trained,
                    "reason": run.reason,
                    "padding": run.is_padding,
                    "num": len(run.ids),
                    **({} if run.is_padding else {"ids": list(run.ids), "pieces": list(run.pieces)}),
                }
                for run in segment.runs
            ],
        }
        for segment in view.segments
    ]
    return {
        "tokens": view.num_tokens,
        "trained": view.num_trained,
        "padding": view.num_padding,
        "cut": view.num_cut,
        "segments": segments,
    }
