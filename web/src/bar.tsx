// A GPU's memory as one bar, and a job's usage against its request and limit.

import type { Gpu, JobGpu } from "./api";
import { bytes, share } from "./format";

interface Part {
  kind: "guaranteed" | "borrowed" | "unmanaged" | "returning" | "free";
  name: string;
  amount: number;
}

export function partsOf(gpu: Gpu): Part[] {
  return [
    { kind: "guaranteed", name: "guaranteed", amount: gpu.usage - gpu.lent },
    { kind: "borrowed", name: "borrowed", amount: gpu.lent },
    { kind: "unmanaged", name: "outside gpushare", amount: gpu.unmanaged },
    { kind: "returning", name: "being returned", amount: gpu.returning },
    { kind: "free", name: "free", amount: gpu.free },
  ];
}

/** `suspended`: bytes in host memory of jobs that were on this GPU, and come back. */
export function GpuBar({ gpu, suspended }: { gpu: Gpu; suspended: number }) {
  const parts = partsOf(gpu).filter((part) => part.amount > 0);
  const spoken = parts.map((part) => `${bytes(part.amount)} ${part.name}`).join(", ");
  return (
    <>
      <div class="bar" role="img" aria-label={`GPU ${gpu.index}: ${spoken}; ${bytes(gpu.requested)} requested`}>
        {parts.map((part) => (
          <span
            key={part.kind}
            class={`part ${part.kind}`}
            title={`${part.name}: ${bytes(part.amount)}`}
            style={{ width: `${(100 * part.amount) / gpu.total}%` }}
          />
        ))}
        {gpu.requested > 0 && (
          <span
            class="tick"
            title={`requested: ${bytes(gpu.requested)}`}
            style={{ left: `${(100 * gpu.requested) / gpu.total}%` }}
          />
        )}
      </div>
      <dl class="legend">
        {parts.map((part) => (
          <div key={part.kind}>
            <dt>
              <i class={`swatch ${part.kind}`} /> {part.name}
            </dt>
            <dd>{bytes(part.amount)}</dd>
          </div>
        ))}
        <div>
          <dt>
            <i class="swatch line" /> requested
          </dt>
          <dd>{bytes(gpu.requested)}</dd>
        </div>
        {suspended > 0 && (
          <div title="of suspended jobs: it is not on the GPU, and comes back when there is room">
            <dt>
              <i class="swatch suspended" /> in host memory
            </dt>
            <dd>{bytes(suspended)}</dd>
          </div>
        )}
      </dl>
    </>
  );
}

/** The bar's end is the limit; the tick is the request. */
export function UsageBar({
  of: { usage, request, limit, loan, suspended = 0 },
}: {
  of: Pick<JobGpu, "usage" | "request" | "limit" | "loan" | "suspended">;
}) {
  const within = Math.min(usage, request);
  const width = (amount: number) => `${Math.min(100, (100 * amount) / Math.max(1, limit))}%`;
  const label =
    `${bytes(usage)} in use of a limit of ${bytes(limit)}` +
    (loan > 0 ? `, ${bytes(loan)} of it borrowed` : "") +
    (suspended > 0 ? `; ${bytes(suspended)} wait in host memory` : "");
  return (
    <div class="usage" role="img" aria-label={label} title={`${label} (${share(usage / Math.max(1, limit))})`}>
      <span class="part guaranteed" style={{ width: width(loan > 0 ? within : usage) }} />
      {loan > 0 && <span class="part borrowed" style={{ width: width(loan) }} />}
      {suspended > 0 && <span class="part suspended" style={{ width: width(suspended) }} />}
      {request > 0 && request < limit && <span class="tick" style={{ left: width(request) }} />}
    </div>
  );
}
