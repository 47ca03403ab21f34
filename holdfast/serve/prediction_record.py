"""A prediction as a record of the topic `predictions.SERVICE`: what is in it and what not. Pure.

A record is a JSON object, so that every language reads it (docs/topics.md). A tensor has its
datatype and shape as in the Open Inference Protocol, and one of

    "data": [0.5, 1.0]     its elements in row-major order: small tensors, and short texts
    "raw": "AACAPwAA..."   its bytes in base64: little-endian, in row-major order
    "blob": {"key": ..., "sha256": ..., "bytes": ...}    the same bytes, in the blob store
    "redacted": true       nothing

The bytes of BYTES are those of its element where it has one; else each has a length of four bytes
(little-endian) before it. So an image's blob is the image.

    first = FirstOfEach()
    for record in consumer:
        prediction = read(record.value)
        if first.is_new(prediction.id):     # the same request on two replicas is two records
            array_of(prediction.inputs["x"], blobs.get)
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from holdfast.models.datatypes import BYTES, NUMPY
from holdfast.serve.protocol.tensors import Array, as_bytes, from_raw, packed_bytes
from holdfast.storage.keys import BytesLike
from holdfast.wire.errors import Corrupt, Usage

if TYPE_CHECKING:
    from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
    from holdfast.serve.records import PredictionPolicy

# Tensors of no more elements are written as a list, for people and simple programs; others as
# bytes: a list costs the replica an object and some twenty digits for each element.
PREDICTION_LIST_ELEMENTS_MAX: Final = 8
# Texts of a list together; longer ones are bytes.
PREDICTION_LIST_BYTES_MAX: Final = 4_096
# Elements of an input that names entities: rows of a batch.
PREDICTION_KEYS_MAX: Final = 64
# Bytes of one record's tensors, before base64 makes four of three: Kafka takes a record of a
# megabyte unless somebody has set more.
PREDICTION_RECORD_BYTES_MAX: Final = 512 * 1024
# Ids and texts that come from outside.
PREDICTION_TEXT_CHARACTERS_MAX: Final = 200
# Beginnings of records that a replica remembers.
PREDICTION_REMEMBERED_MAX: Final = 1_024
# Ids that a reader remembers: a retry comes within seconds of the first try.
PREDICTION_IDS_KEPT: Final = 100_000

_HASH_BYTES: Final = 8
_HASHES: Final = 1 << (8 * _HASH_BYTES)
_NAMES: Final = {dtype: name for name, dtype in NUMPY.items()}
_NUMBERS: Final = frozenset(_NAMES) - {NUMPY[BYTES]}
# In `keys`: the value of the header by which a service routes its requests (`--route-by`).
ROUTED: Final = "route_by"


class BlobReference(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are in the blob store, until the topic's retention is over."""

    key: str
    sha256: str
    bytes: int


class TensorRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tensor in a record: one of the last four."""

    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | None = None
    raw: bytes | None = None
    blob: BlobReference | None = None
    redacted: bool = False


class Prediction(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was asked and answered. `id`: of the request; `client_id`: what the client itself called
    it. `at`: when it was answered, in seconds since 1970; `ms`: how long that took. `keys`: the
    entities that it is about, by the name of the input or parameter."""

    id: str
    at: float
    service: str
    model: str
    version: int
    variant: str
    region: str
    replica: int
    ms: float
    inputs: dict[str, TensorRecord]
    outputs: dict[str, TensorRecord]
    keys: dict[str, list[Any]] = {}
    client_id: str = ""
    cached: bool = False


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Prediction).decode


# --- what is recorded -----------------------------------------------------------------------------


def is_sampled(request_id: str, share: float) -> bool:
    """Whether this request belongs to the share that is recorded. By its id alone: all tries of a
    request agree, and whoever belongs to a share belongs to each larger one."""
    if share >= 1.0:
        return True
    found = blake2b(request_id.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(found, "big") < share * _HASHES


def to_blobs(sizes: Mapping[str, int], bound: int, together: int) -> frozenset[str]:
    """The names of the tensors that go to the blob store: those above `bound`, and the largest of
    the others while these have more than `together`."""
    large = {name for name, size in sizes.items() if size > bound}
    left = sum(size for name, size in sizes.items() if name not in large)
    if left <= together:
        return frozenset(large)
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if left <= together:
            break
        if name not in large:
            large.add(name)
            left -= sizes[name]
    return frozenset(large)


_CUT: Final = PREDICTION_TEXT_CHARACTERS_MAX


def id_of(request: InferRequest) -> str:
    """The id of a request: the gateway's, which is that of all its tries; else the client's own; ""
    if it has none."""
    found = request.trace or request.id
    return found if len(found) <= PREDICTION_TEXT_CHARACTERS_MAX else found[:_CUT]


def size_of(request: InferRequest, answer: InferAnswer) -> int:
    """Bytes of all tensors."""
    size = 0
    for array in request.inputs.values():
        size += _size(array)
    for array in answer.outputs.values():
        size += _size(array)
    return size


def blobs_of(
    request: InferRequest, answer: InferAnswer, policy: PredictionPolicy
) -> tuple[frozenset[str], frozenset[str]]:
    """The inputs and the outputs that go to the blob store. What is redacted goes nowhere."""
    sizes = {f"i{name}": _size(array) for name, array in request.inputs.items()}
    sizes = {name: size for name, size in sizes.items() if name[1:] not in policy.redact}
    sizes |= {f"o{name}": _size(array) for name, array in answer.outputs.items()}
    large = to_blobs(sizes, policy.blob_bytes, PREDICTION_RECORD_BYTES_MAX)
    inputs = frozenset(name[1:] for name in large if name[0] == "i")
    return inputs, frozenset(name[1:] for name in large if name[0] == "o")


Names = tuple[frozenset[str], frozenset[str]]  # of inputs, of outputs
NO_BLOBS: Final[Names] = (frozenset(), frozenset())
Put = Callable[[BytesLike], BlobReference]


class RecordWriter:
    """Writes the records of one replica. What is the same in many of them is made once: a record
    costs the replica some microseconds, without an object for each value."""

    def __init__(self, service: str, replica: int, policy: PredictionPolicy) -> None:
        self._service = service
        self._replica = replica
        self._policy = policy
        self._heads: dict[tuple[str, int, str, str, str, bool], bytes] = {}
        self._tensors: dict[tuple[str, int, tuple[int, ...]], bytes] = {}

    def write(
        self,
        request: InferRequest,
        answer: InferAnswer,
        request_id: str,
        at_s: float,
        ms: float,
        blobs: Names = NO_BLOBS,
        put: Put | None = None,
    ) -> bytes:
        """The record of a prediction. `put` writes what `blobs_of` has named."""
        redact, keys = self._policy.redact, self._policy.keys
        parts = [b'{"id":', _encode(request_id), b',"at":', _encode(at_s), b',"ms":', _encode(ms)]
        parts.append(self._head(request, answer))
        if keys or request.entity:
            parts += (b',"keys":', _encode(_keys(request, keys)))
        between = b',"inputs":{'
        for name, array in request.inputs.items():
            parts.append(between)
            if name in redact:
                parts.append(_redacted(name, array))
            else:
                self._add(parts, name, array, put if name in blobs[0] else None)
            between = b","
        parts.append(b"}" if request.inputs else b',"inputs":{}')
        between = b',"outputs":{'
        for name, array in answer.outputs.items():
            parts.append(between)
            self._add(parts, name, array, put if name in blobs[1] else None)
            between = b","
        parts.append(b"}}" if answer.outputs else b',"outputs":{}}')
        return b"".join(parts)

    def _head(self, request: InferRequest, answer: InferAnswer) -> bytes:
        """The fields that many records share."""
        variant, region, client_id = request.variant, request.region, request.id
        key = (answer.model, answer.version, variant, region, client_id, answer.cached)
        found = self._heads.get(key)
        if found is not None:
            return found
        fields = {
            "service": self._service,
            "model": answer.model,
            "version": answer.version,
            "variant": variant[:PREDICTION_TEXT_CHARACTERS_MAX],
            "region": region[:PREDICTION_TEXT_CHARACTERS_MAX],
            "replica": self._replica,
        }
        if client_id:
            fields["client_id"] = client_id[:PREDICTION_TEXT_CHARACTERS_MAX]
        if answer.cached:
            fields["cached"] = True
        found = b"," + _encode(fields)[1:-1]
        # Ids are of one request each.
        if not client_id and len(variant) + len(region) <= PREDICTION_TEXT_CHARACTERS_MAX:
            _remember(self._heads, key, found)
        return found

    def _add(self, parts: list[bytes], name: str, array: Array, put: Put | None) -> None:
        """The tensor, by its name. Mostly there is one like it, of other bytes."""
        dtype = array.dtype
        if put is None and dtype.isnative:
            head = self._tensors.get((name, dtype.num, array.shape))
            if head is not None:
                try:
                    raw = b2a_base64(array, newline=False)  # type: ignore[arg-type]  # a buffer
                except (ValueError, BufferError):  # it is not in one piece
                    pass
                else:
                    parts += (head, raw, b'"}')
                    return
            elif array.size > PREDICTION_LIST_ELEMENTS_MAX and dtype in _NUMBERS:
                head = _named(name, TensorRecord(_NAMES[dtype], array.shape, raw=b""))
                _remember(self._tensors, (name, dtype.num, array.shape), head[:-2])
        parts.append(_named(name, _tensor(array, put)))


def _named(name: str, record: TensorRecord) -> bytes:
    return b"%b:%b" % (_encode(name), _encode(record))


def _redacted(name: str, array: Array) -> bytes:
    return _named(name, TensorRecord(_NAMES.get(array.dtype, BYTES), array.shape, redacted=True))


def _remember(known: dict[Any, bytes], key: object, value: bytes) -> None:
    """What is remembered comes from outside, and so is bounded."""
    if len(known) >= PREDICTION_REMEMBERED_MAX:
        known.clear()
    known[key] = value


def _size(array: Array) -> int:
    if not array.dtype.hasobject:
        return array.nbytes
    return sum(len(element) for element in array.reshape(-1).tolist())


def _tensor(array: Array, put: Put | None = None) -> TensorRecord:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype, shape = array.dtype, array.shape
    datatype = _NAMES.get(dtype)
    if datatype is None or datatype is BYTES:
        return _texts(array, put)
    if put is not None:
        return TensorRecord(datatype, shape, blob=put(np.ascontiguousarray(array).data.cast("B")))
    if array.size <= PREDICTION_LIST_ELEMENTS_MAX:
        values = array.reshape(-1).tolist()
        # JSON has no word for what is not finite.
        if dtype.kind != "f" or isfinite(sum(values)):
            return TensorRecord(datatype, shape, values)
    return TensorRecord(datatype, shape, None, array.tobytes())


def _texts(array: Array, put: Put | None) -> TensorRecord:
    """Of BYTES; whatever else a model may give becomes that, as it does in its answers."""
    elements = [as_bytes(element) for element in array.reshape(-1).tolist()]
    shape = array.shape
    if put is None and sum(map(len, elements)) <= PREDICTION_LIST_BYTES_MAX:
        try:
            return TensorRecord(BYTES, shape, [element.decode() for element in elements])
        except UnicodeDecodeError:
            pass
    raw = elements[0] if len(elements) == 1 else packed_bytes(array)
    if put is None:
        return TensorRecord(BYTES, shape, None, raw)
    return TensorRecord(BYTES, shape, blob=put(raw))


def _keys(request: InferRequest, names: Iterable[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    if request.entity:
        found[ROUTED] = [request.entity[:PREDICTION_TEXT_CHARACTERS_MAX]]
    for name in names:
        array = request.inputs.get(name)
        if array is not None:
            values = array.reshape(-1)[:PREDICTION_KEYS_MAX].tolist()
            found[name] = [
                value.decode(errors="replace") if isinstance(value, bytes) else value
                for value in values
            ]
        elif name in request.parameters:
            found[name] = [request.parameters[name]]
    return found


# --- reading --------------------------------------------------------------------------------------


def read(value: bytes) -> Prediction:
    """The prediction of a record; fields that a later version has added are passed over."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            "this is not the record of a prediction",
            why=str(error),
            fix="read topics of predictions with it: predictions.SERVICE",
        ) from error


def array_of(tensor: TensorRecord, fetch: Callable[[str], bytes] | None = None) -> Array:
    """The array of a tensor; `fetch` reads a blob by its key (`Blobs.get`)."""
    if tensor.redacted:
        raise Usage("this input is redacted", why="its service has --predictions-redact for it")
    count = prod(tensor.shape)
    if tensor.data is not None:
        if tensor.datatype == BYTES:
            texts = np.empty(count, object)
            texts[:] = [element.encode() for element in tensor.data]
            return texts.reshape(tensor.shape)
        return np.array(tensor.data, NUMPY[tensor.datatype]).reshape(tensor.shape)
    raw = tensor.raw
    if tensor.blob is not None:
        if fetch is None:
            raise Usage("this tensor is in the blob store", fix="give a store's `get` as `fetch`")
        raw = fetch(tensor.blob.key)
    if tensor.datatype == BYTES and count == 1:
        single = np.empty(1, object)
        single[0] = raw
        return single.reshape(tensor.shape)
    return from_raw("tensor", tensor.datatype, tensor.shape, count, memoryview(raw or b""))


class FirstOfEach:
    """Which records are the first of their request, of those that a reader has seen lately. The
    records of one request are in one partition: their key is its id."""

    def __init__(self, ids_max: int = PREDICTION_IDS_KEPT) -> None:
        self._ids_max = ids_max
        self._seen: OrderedDict[str, None] = OrderedDict()

    def is_new(self, request_id: str) -> bool:
        if request_id in self._seen:
            return False
        self._seen[request_id] = None
        if len(self._seen) > self._ids_max:
            self._seen.popitem(last=False)
        return True
