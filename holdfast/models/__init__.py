"""Models: versions that never change, and aliases that move.

- `records`, `names`, `drafts`   values: a version, its signature, an alias; no I/O
- `catalogue`, `registry`        reading and changing what is published, in the coordination plane
- `loading`                      a version's files, loaded: `fetch`, `load`, `check_example`
- `importing`                    a bundle's code in an import space of its own
- `kinds`, `torch_kind`          torch, python, function, onnx: each as something that predicts
- `examples`, `making`           one batch with its outputs; from code and weights to a signature
- `tensors`, `differences`, `exporting`   for people: what changed, and plain files

It imports `coordination`, `storage` and `wire`. numpy, torch, safetensors and onnxruntime are
imported only by the modules that need them: reading the registry needs none of them.
"""
