"""The webhook: annotations that people have already, as claims of this driver.

A pod with `gpu-fraction`, `gpu-memory` and the like is sent here before it is stored. It comes back with a claim, whose
ResourceClaimTemplate is made on the way, or is refused with one sentence.

    asked.py         what a pod's annotations say        limits.py    what queues allow
    of_container.py  those of a single container, KAI's
    sizes.py         how large the GPUs are              share.py     request and limit of its claim
    template.py      the template, and the patch         review.py    questions and answers of the API server
    certificates.py  CA and certificate                  keeper.py    who keeps them, and tells the API server
    makers.py        templates that are made, removed    serve.py     the HTTPS server
    carry.py         the patch for a server without claims: pods carry theirs
"""
