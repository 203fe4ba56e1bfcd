// Parts of the page that fail on their own, and how a part says that it is empty.

import { Component, type ComponentChildren } from "preact";

interface Props {
  name: string;
  children: ComponentChildren;
}

/** A mistake in one panel leaves the others as they are. */
export class Panel extends Component<Props, { failed: string | null }> {
  override state: { failed: string | null } = { failed: null };

  override componentDidCatch(error: unknown): void {
    this.setState({ failed: String(error) });
  }

  override render() {
    if (this.state.failed === null) return <>{this.props.children}</>;
    return (
      <div class="panel failed" role="alert">
        <p>
          The panel “{this.props.name}” has failed: {this.state.failed}. This is a bug of gpushare; the rest of the page
          goes on.
        </p>
        <button type="button" onClick={() => this.setState({ failed: null })}>
          Try again
        </button>
      </div>
    );
  }
}

/** A component that is rendered again only when a prop is another one. */
export function memo<P extends object>(render: (props: P) => ComponentChildren) {
  return class extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      return (Object.keys(next) as (keyof P)[]).some((name) => next[name] !== this.props[name]);
    }

    override render() {
      return render(this.props);
    }
  };
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}
