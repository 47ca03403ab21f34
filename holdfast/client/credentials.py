"""Who a person is to coordinators and agents: `credentials_of(cluster)`.

Where the cluster was made, and where a coordinator stands by, its authority lies in the folder:
credentials are made on the spot, and end as all do. On a machine that joined, the credentials of
its own node are used.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from holdfast.wire.errors import HoldfastError, Missing

if TYPE_CHECKING:
    from holdfast.agent.credential_store import NodeCredentials
    from holdfast.launch.cluster import Cluster

# In the certificate of a person. No agent is called so: a node's name begins otherwise by default.
_PERSON: Final = "person"


def credentials_of(cluster: Cluster) -> NodeCredentials:
    """Credentials that hold now; `Missing` if this machine has none."""
    from holdfast.agent.credential_store import CredentialStore, NodeCredentials
    from holdfast.system.certificates import TlsIdentity, request_for
    from holdfast.wire import tokens

    if cluster.has_authority:
        authority = cluster.authority()
        request_pem, key_pem = request_for(_PERSON)
        certificate_pem = authority.sign(request_pem, _PERSON)
        identity = TlsIdentity(certificate_pem, key_pem, authority.trust_pem)
        return NodeCredentials(
            identity, tokens.member_token(authority, _PERSON, identity.peer.until_s)
        )
    trouble: HoldfastError | None = None
    for folder in sorted(cluster.credentials_folder.glob("*")):
        try:
            credentials = CredentialStore.open(folder).credentials
        except HoldfastError as error:
            trouble = error
            continue
        if credentials.identity.peer.until_s > time.time():
            return credentials
    raise Missing(
        f"this machine has no credentials of the cluster {cluster.name} that hold now",
        why=str(trouble) if trouble else "its agent was not connected for longer than they hold",
        fix="holdfast join   (it asks for a token: holdfast token, where the cluster was made)",
    )
