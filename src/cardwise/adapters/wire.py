"""Every label, annotation and resource name that cardwise reads or writes in Kubernetes objects, in one place.

Three families of resource names say the same thing (SPEC A1): users write NVIDIA's, HAMi's manifests must run as they
are, and in the cluster the webhook turns both into cardwise's own. Refuses to read amounts: that is for ``asks.py``.
"""

from __future__ import annotations

GPU, GPU_SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
"""Cards; the second name is the NVIDIA plugin's for shared cards where it is told to rename them."""
USER_MEMORY, USER_CORES = "nvidia.com/gpu.memory", "nvidia.com/gpu.cuda-cores"
"""What users write: MiB of each card, percent of each card."""
HAMI_MEMORY, HAMI_MEMORY_PCT, HAMI_CORES = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
"""HAMi's names: MiB, percent of memory, percent of compute, of each card."""
OWN_COUNT, OWN_MEMORY, OWN_CORES = "cardwise.dev/gpu", "cardwise.dev/gpu-memory", "cardwise.dev/gpu-cores"
OWN_MEMORY_PCT = "cardwise.dev/gpu-memory-percentage"
"""Cardwise's own: slots; and, as totals over the container's cards, MiB, percent of compute, percent of memory."""

COUNTS = (OWN_COUNT, GPU, GPU_SHARED)
"""Names of the number of cards, the one that counts first."""
READ_RESOURCES = frozenset(
    {*COUNTS, USER_MEMORY, USER_CORES, HAMI_MEMORY, HAMI_MEMORY_PCT, HAMI_CORES, OWN_MEMORY, OWN_CORES, OWN_MEMORY_PCT}
)
IGNORED_RESOURCES = frozenset({"nvidia.com/priority"})
"""HAMi's, without a bearing on whether a pod fits; taken out of pods, for no node offers it."""
MIG_RESOURCES = "nvidia.com/mig-"
"""How NVIDIA's names of MIG instances begin."""
RESOURCE_DOMAINS = ("nvidia.com/", "cardwise.dev/")
"""A resource of these domains that is not known is worth a note: it may be a misspelt ask."""

LABEL_PRODUCTS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
"""The card model of a node; GKE has its own label. Pods select by the same ones."""
LABEL_PRODUCT = LABEL_PRODUCTS[0]
LABEL_MEMORY, LABEL_COUNT, LABEL_REPLICAS = "nvidia.com/gpu.memory", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"
"""Labels of GPU feature discovery: MiB of each card, physical cards, and how many pods share each."""
LABEL_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
LABEL_POD_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
"""What a Deployment, or an Argo Rollout, appends to the names of its ReplicaSets."""
ANNOTATION_HAMI_CARDS = "hami.io/node-nvidia-register"
ANNOTATION_HAMI_ALLOCATED = "hami.io/vgpu-devices-allocated"
"""On a pod: per container, ended by ``;``, its cards, each ``uuid,type,MiB,percent`` and ended by ``:``."""
ANNOTATIONS_HAMI_TYPES = ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype")
"""On a pod: card models that will do, and card models that will not (comma-separated)."""
ANNOTATION_HAMI_USE_UUID, ANNOTATION_HAMI_NO_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
ANNOTATION_HAMI_NUMA, ANNOTATION_HAMI_MODE = "nvidia.com/numa-bind", "nvidia.com/vgpu-mode"
ANNOTATION_HAMI_NODE_POLICY = "hami.io/node-scheduler-policy"
ANNOTATION_HAMI_CARD_POLICY = "hami.io/gpu-scheduler-policy"
"""On a pod, for HAMi alone: wishes that are not read here, and told so (``scheduler/hami.py``)."""

ANNOTATION_ALLOC, LABEL_BOUND = "cardwise.dev/alloc", "cardwise.dev/bound"
"""On a pod, written with its Binding and by the scheduler alone: the allocation; and that there is one."""
LABEL_LIMITS = "cardwise.dev/limits"
"""On a pod, beside it: ``hard`` if all of its cards hold it to its memory in any case, else ``soft``."""
ANNOTATION_CLASS, ANNOTATION_WORKLOAD = "cardwise.dev/class", "cardwise.dev/workload"
ANNOTATION_EXCLUSIVE, ANNOTATION_MIX = "cardwise.dev/exclusive", "cardwise.dev/mix"
ANNOTATION_MODEL, ANNOTATION_GPU_MODEL = "cardwise.dev/model", "cardwise.dev/gpu-model"
ANNOTATION_ISOLATION = "cardwise.dev/isolation"
ANNOTATION_PROCESSES = "cardwise.dev/processes"
ANNOTATION_LIMITS = "cardwise.dev/limits"
ANNOTATION_OVERSUBSCRIBE = "cardwise.dev/oversubscribe"
ANNOTATION_PREEMPTIBLE = "cardwise.dev/preemptible"
ANNOTATION_ENGINE, ANNOTATION_ENGINE_POLICY = "cardwise.dev/engine", "cardwise.dev/engine-policy"
"""On a pod: the inference engine in it, and what becomes of a share of the card that it is told and may not take."""
POD_ANNOTATIONS = frozenset(
    {
        ANNOTATION_CLASS,
        ANNOTATION_WORKLOAD,
        ANNOTATION_EXCLUSIVE,
        ANNOTATION_MIX,
        ANNOTATION_MODEL,
        ANNOTATION_GPU_MODEL,
        ANNOTATION_ISOLATION,
        ANNOTATION_PROCESSES,
        ANNOTATION_LIMITS,
        ANNOTATION_OVERSUBSCRIBE,
        ANNOTATION_PREEMPTIBLE,
        ANNOTATION_ENGINE,
        ANNOTATION_ENGINE_POLICY,
    }
)
"""On a pod, written by users: latency class, workload class, whether it wants its cards to its tenant alone, whether
training and inference may mix, the weights it loads, card models and isolation modes that will do (comma-separated),
how many processes of each container use a card at a time (MPS limits each of them), whether limits must bind, and
whether a best-effort pod's slices may be of memory that is lent, and whether it may have to go for a pod of higher
priority."""
ANNOTATION_NOMINATED = "cardwise.dev/nominated"
"""On a pod that waits, written by the controller: what is kept for it, until when, and who has to go for that."""
ANNOTATION_PREEMPTED_FOR, ANNOTATION_PREEMPTED_BY = "cardwise.dev/preempted-for", "cardwise.dev/preempted-by"
"""On a pod that has to go, written by the controller: for which pod, and by when it will be gone at the latest."""
ANNOTATION_PREEMPTIONS = "cardwise.dev/preemptions"
"""On a node, written by the controller: who was evicted there of late, when, and for whom."""
ANNOTATION_MOVING, ANNOTATION_STAYS = "cardwise.dev/moving", "cardwise.dev/stays"
"""On a pod on bad ground, written by the controller: that its ReplicaSet let it go and makes another; or why it is not
moved."""
ANNOTATION_MOVES = "cardwise.dev/moves"
"""On a node, written by the controller: who left it of late, and when."""
CONDITION_RESCUED = "CardwiseRescued"
"""On a node: False while pods are on a fenced card of it, or the node is lost, with who cannot leave and why."""
LABEL_PREFETCH = "cardwise.dev/prefetch"
"""On a PodTemplate, written by users (``true``): it puts a model's weights on a node. On a pod, by the controller: the
PodTemplate that it was made of."""
ANNOTATION_PREFETCH_FOR, ANNOTATION_PREFETCH_NODES = "cardwise.dev/prefetch-for", "cardwise.dev/prefetch-nodes"
ANNOTATION_PREFETCH_SIZE = "cardwise.dev/prefetch-size"
"""On such a PodTemplate, written by users: the Deployment whose next replicas load it, on how many nodes it is wanted,
and how much disk it takes there."""
ANNOTATION_PREFETCH_NODE = "cardwise.dev/prefetch-node"
"""On a pod that was made of one, by the controller: where it loads."""
LABEL_KUEUE_MANAGED, LABEL_KUEUE_QUEUE = "kueue.x-k8s.io/managed", "kueue.x-k8s.io/queue-name"
LABEL_KUEUE_CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
"""On a pod, Kueue's: that it manages the pod, the LocalQueue that users name, and the ClusterQueue that admitted it."""
LABEL_COHORT = "cardwise.dev/cohort"
"""On objects of Kueue that cardwise made: the cohort of the quota file that has them."""
ANNOTATION_CARDS, ANNOTATION_LOAD = "cardwise.dev/cards", "cardwise.dev/load"
ANNOTATION_CACHED_MODELS = "cardwise.dev/cached-models"
"""On a node, written by its agent: inventory, recent utilization, and the weights on its disk (comma-separated)."""
ANNOTATION_LENDABLE, ANNOTATION_EVICTED = "cardwise.dev/lendable", "cardwise.dev/evicted"
"""On a node, written by its agent: MiB that may be lent beyond each card; and services whose pods had to give a card's
memory back lately. Both by UUID; a card that is not in them lends nothing, and keeps nobody away."""
ANNOTATION_FREED = "cardwise.dev/freed"
"""On a node, written by the scheduler to wake pods that wait: capacity came free there."""
CONDITION_CONSISTENT = "CardwiseConsistent"
"""On a node: False while its pods hold cards or amounts that it does not have, or its agent is silent."""
CONDITION_MPS = "CardwiseMPSReady"
"""On a node: False while its MPS daemon is not there or does not hold a limit."""
LEASE_AGENT_PREFIX = "cardwise-agent-"
"""Of the Lease that the agent of a node renews; the node's name follows."""
ENV_ALLOC = "CARDWISE_ALLOC"
"""In a container: its pod's allocation, from the annotation."""
ANNOTATION_ENGINE_SHARE, ENV_ENGINE_SHARE = "cardwise.dev/engine-share", "CARDWISE_ENGINE_SHARE"
"""On a pod, written with its Binding: the share of what its engine sees that keeps it inside the slice; and that in its
container, from the annotation."""
ANNOTATION_ENGINE_BEFORE = "cardwise.dev/engine-before"
"""On a pod, written by the webhook: what its engine was told before that was rewritten."""
ANNOTATION_GATEWAY, ANNOTATION_GATEWAY_PREFIX = "cardwise.dev/gateway", "cardwise.dev/gateway-"
"""On a Service, written by users: the name of the gateway that shall stand before it; and, a setting's key appended,
how it is served, such as ``cardwise.dev/gateway-kind``."""
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
"""On an EndpointSlice: its Service."""
POLICY_GROUP, POLICY_VERSION = "cardwise.dev", "v1alpha1"
"""Of ServicePolicy, the custom resource."""
SCHEDULER_NAME = "cardwise"
DEFAULT_SCHEDULER = "default-scheduler"

ANNOTATION_DOMAINS = frozenset({"cardwise.dev", "nvidia.com", "hami.io"})
"""Of annotations that are read."""

_SHARED_SUFFIX = "-SHARED"
_BRANDS = ("NVIDIA-", "TESLA-")


def model_token(product: str) -> str:
    """A card model as one exact token, however it is spelt: ``Tesla-T4``, ``NVIDIA Tesla T4``, ``t4`` are all ``T4``.

    Upper case, dashes for blanks, without the vendor and without the suffix of a shared card. Tokens are compared
    whole: A10 is not A100.
    """
    token = "-".join(product.upper().split()).removesuffix(_SHARED_SUFFIX)
    while token.startswith(_BRANDS):
        token = token.partition("-")[2]
    return token
