function move(step) {
  const rows = [...document.querySelectorAll('.list > li')];
  if (!rows.length) return;
  const at = rows.findIndex((r) => r.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  next.querySelector('a')?.focus();
  next.scrollIntoView({block: 'nearest'});
}

const views = {n: '/', c: '/cluster', p: '/compare'};

export function bindKeys() {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === 'Escape' && typing) event.target.blur();
    if (typing) return;
    if (event.key === '/') document.querySelector('input[type=search]').focus();
    else if (event.key === 'j') move(1);
    else if (event.key === 'k') move(-1);
    else if (views[event.key]) location.href = views[event.key];
    else return;
    event.preventDefault();
  });
}
