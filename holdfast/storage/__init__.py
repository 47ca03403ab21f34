"""Storage: blobs in a folder, in memory or in S3; parts, manifests and bundles on top of them.

- `open_store(address)`  a store: `file:DIR`, `memory:NAME`, `s3://BUCKET/PREFIX?...`
- `parts`                blobs named by their content, written once
- `manifests`            what a checkpoint consists of
- `garbage`              removing what no checkpoint needs; deciding is pure
- `lapsing`              blobs that are needed until a day, and removed then
- `bundles`              the user's code as one blob; `bundle_names` its names and versions

It knows nothing of jobs, terms or the coordination plane, and imports only `holdfast.wire`. obstore
is imported when an object store is first used.
"""

from holdfast.storage.backend import Listed
from holdfast.storage.blobs import Blob, Blobs, open_store
from holdfast.storage.deadline import Retrying
from holdfast.storage.parts import put_part, read_part
from holdfast.wire.reports import Part

__all__ = ["Blob", "Blobs", "Listed", "Part", "Retrying", "open_store", "put_part", "read_part"]
