"""Ours among the contestants, and servers that answer fixed bytes: the most that could be reached.

- one replica, asked directly; two replicas behind the gateway
- a fast HTTP server (granian) answering fixed bytes; the same gateway before two of them
"""

from __future__ import annotations

import sys
from dataclasses import replace

from bench.serving.cluster import ServingCluster
from bench.serving.connections import Address
from bench.serving.contestants import SCRIPTS, Contestant, free_port
from bench.serving.replies import Shot


class OneReplica(Contestant):
    name = "ours, one replica"
    binary = True
    version = "1"
    replicas = 1
    _cluster: ServingCluster | None = None

    def start(self) -> None:
        self._cluster = ServingCluster(self.folder)
        self._cluster.start_all()
        self._cluster.serve_work(self.model, self.replicas)
        self.address = self._address(self._cluster)

    def _address(self, cluster: ServingCluster) -> Address:
        return cluster.replicas(self.model)[0]

    def shot(self, binary: bool) -> Shot:
        shot = super().shot(binary)
        if self._cluster is None:
            return shot
        return replace(shot, headers={**shot.headers, **self._cluster.as_gateway(self.model)})

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


class Gateway(OneReplica):
    name = "ours, gateway and two replicas"
    replicas = 2

    def _address(self, cluster: ServingCluster) -> Address:
        return cluster.gateway


class Fixed(Contestant):
    name = "fixed bytes"
    models = ("small",)
    version = "1"

    def start(self) -> None:
        self._serve(self.address)

    def _serve(self, address: Address) -> None:
        words = [str(SCRIPTS / "fixed.py"), address[0], str(address[1]), self.model]
        self.spawn([sys.executable, *words])


class FixedGateway(Fixed):
    name = "fixed bytes, gateway and two"
    _cluster: ServingCluster | None = None

    def start(self) -> None:
        self._cluster = ServingCluster(self.folder)
        servers = [(self.address[0], free_port()) for _ in range(2)]
        for server in servers:
            self._serve(server)
        self._cluster.start_gateway()
        self._cluster.stand_in(self.model, servers)
        self.address = self._cluster.gateway

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        super().close()
