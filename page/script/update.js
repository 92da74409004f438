// The server's HTML is made of templates that escape every text of others.
function parse(html) {
  const template = document.createElement('template');
  template.innerHTML = html;
  return template.content;
}

// State of the reader's that a replaced block keeps: open details, scroll positions, the focus.
function remember(block) {
  const active = document.activeElement;
  return {
    open: [...block.querySelectorAll('details')].map((d) => d.open),
    scroll: [...block.querySelectorAll('pre, .scroll')].map((e) => [e.scrollTop, e.scrollTop + e.clientHeight >= e.scrollHeight - 4, e.scrollLeft]),
    focus: block.contains(active) ? [...block.querySelectorAll('a, summary, [tabindex]')].indexOf(active) : -1,
  };
}

function restore(block, state) {
  block.querySelectorAll('details').forEach((d, i) => { d.open = !!state.open[i]; });
  block.querySelectorAll('pre, .scroll').forEach((e, i) => {
    const [top, atEnd, left] = state.scroll[i] || [0, true, 0];
    e.scrollTop = atEnd && e.tagName === 'PRE' ? e.scrollHeight : top;
    e.scrollLeft = left;
  });
  if (state.focus >= 0) block.querySelectorAll('a, summary, [tabindex]')[state.focus]?.focus({preventScroll: true});
}

function applyBlock(id, html) {
  const block = document.getElementById(id);
  if (!block) return;
  const state = remember(block);
  block.replaceChildren(parse(html));
  restore(block, state);
}

function applyItem(id, html, fresh) {
  const next = parse(html).firstElementChild;
  const old = document.getElementById(id);
  if (!old) {
    fresh.set(id, next);
    return;
  }
  const focused = old.contains(document.activeElement);
  if (old.classList.contains('at')) next.classList.add('at');
  old.replaceWith(next);
  if (focused) next.querySelector('a')?.focus({preventScroll: true});
}

function applyOrder(id, order, items, fresh) {
  const list = document.getElementById(id);
  if (!list) return;
  const first = !list.dataset.live;
  list.dataset.live = '1';
  const wanted = new Set(order);
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  for (const child of [...list.children]) if (!wanted.has(child.id)) child.remove();
  let at = list.firstElementChild;
  for (const key of order) {
    const element = (at && at.id === key) ? at : items.get(key);
    if (!element) continue;
    if (element === at) {
      at = at.nextElementSibling;
      continue;
    }
    if (fresh.has(key) && !first) element.classList.add('new');
    list.insertBefore(element, at);
  }
  // An element that is moved loses the focus.
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({preventScroll: true});
}

export function applyUpdate(update) {
  for (const [id, html] of Object.entries(update.blocks || {})) applyBlock(id, html);
  const fresh = new Map();
  for (const [id, html] of Object.entries(update.items || {})) applyItem(id, html, fresh);
  const orders = Object.entries(update.order || {});
  // Of all lists before the first is changed: an item may leave one for another.
  const items = new Map(orders.flatMap(([, order]) => order.map((key) => [key, fresh.get(key) || document.getElementById(key)])));
  for (const [id, order] of orders) applyOrder(id, order, items, fresh);
}
