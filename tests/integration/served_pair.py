"""Two services behind a gateway, all of them real processes: `digits`, which doubles numbers,
and `words`, of the model `shout`, which has texts in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.models.records import Signature, TensorSpec
from tests.grpc_calls import unary
from tests.integration.gateway_world import GatewayProcess, World
from tests.integration.replica_stage import FLOATS, ReplicaStage, infer_body
from tests.waiting import eventually

WORDS = Signature((TensorSpec("word", "BYTES", (-1, 1)),), (TensorSpec("loud", "BYTES", (-1, 1)),))
SHOUT = """
    import numpy as np

    def predict(inputs):
        return {"loud": np.array([[word.upper()] for (word,) in inputs["word"]], object)}
"""
WORD_BODY = (
    b'{"inputs": [{"name": "word", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}]}'
)


class ServedPair:
    """The world, its gateway, and a replica of each service."""

    def __init__(self, folder: Path, alone: bool = False, **digits: Any) -> None:
        self.world = World(folder)
        self.stages: list[ReplicaStage] = []
        address = f"zk://{self.world.plane.hosts}?timeout_s=6"
        try:
            self.digits = ReplicaStage(folder / "digits", "digits", address, **digits)
            self.stages.append(self.digits)
            self.digits.hold(self.digits.publish_times(2.0))
            if not alone:
                self.words = ReplicaStage(folder / "words", "words", address, model="shout")
                self.stages.append(self.words)
                self.words.hold(self.words.publish(SHOUT, signature=WORDS).number)
            self.replicas = [
                stage.start(number, f"n{number}") for number, stage in enumerate(self.stages, 1)
            ]
            for replica in self.replicas:
                replica.await_ready()
            self.gateway: GatewayProcess = self.world.gateway()
            for stage in self.stages:
                self.world.applied(stage.plan, stage.name)
            self.gateway.served(body=infer_body([1, 2, 3, 4]))
            if not alone:
                self.gateway.served("/v2/models/words/infer", body=WORD_BODY)
                eventually(self._both_by_grpc, "both answer over gRPC")
        except BaseException:
            self.close()
            raise

    def _both_by_grpc(self) -> bool:
        import grpc

        from holdfast.wire.proto import inference_pb2 as pb

        call = "/inference.GRPCInferenceService/ModelReady"
        with grpc.insecure_channel(self.address) as channel:
            try:
                for name in ("digits", "shout"):
                    asked = pb.ModelReadyRequest(name=name).SerializeToString()
                    unary(channel, call)(asked, timeout=10)
            except grpc.RpcError:
                return False
        return True

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"

    def close(self) -> None:
        for stage in self.stages:
            stage.close()
        self.world.close()


__all__ = ["FLOATS", "SHOUT", "WORDS", "WORD_BODY", "ServedPair"]
