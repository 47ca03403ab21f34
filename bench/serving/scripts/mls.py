"""MLServer's runtimes: named in the model-settings that the contestant writes."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from bench.serving import work


class Runtime(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self.work = work.model(self.name)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        found = self.work(rows.astype("float32", copy=False))
        output = NumpyCodec.encode_output(work.OUTPUT, found)
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version="1", outputs=[output]
        )
