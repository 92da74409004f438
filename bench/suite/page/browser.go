package page

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"time"
)

// browser reads the page as a browser does, without drawing it.
type browser struct {
	client http.Client
	base   string
}

// event is an update that the page has received, with the time when it was there in whole.
type event struct {
	data []byte
	at   time.Time
}

// enter uses the link.
func enter(ctx context.Context, link string) (*browser, error) {
	address, err := url.Parse(link)
	if err != nil {
		return nil, fmt.Errorf("use the link: %w", err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	b := &browser{client: http.Client{Jar: jar, Transport: &http.Transport{Proxy: nil}}, base: address.Scheme + "://" + address.Host}
	_, err = b.get(ctx, address.RequestURI())
	return b, err
}

// get reads a page in whole and returns how long that took.
func (b *browser) get(ctx context.Context, path string) (time.Duration, error) {
	began := time.Now()
	response, err := b.request(ctx, path)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return time.Since(began), errors.Join(err, response.Body.Close())
}

func (b *browser) request(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := b.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("open %s: %s", path, response.Status), response.Body.Close())
	}
	return response, nil
}

// open receives the updates of a page until ctx ends. ended receives why they ended before that.
func (b *browser) open(ctx context.Context, path string) (events <-chan event, ended <-chan error) {
	all, failed := make(chan event), make(chan error, 1)
	go func() { failed <- b.receive(ctx, path, all) }()
	return all, failed
}

// receive sends the updates of a page to all.
func (b *browser) receive(ctx context.Context, path string, all chan<- event) error {
	defer close(all)
	response, err := b.request(ctx, "/events?page="+url.QueryEscape(path))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for lines := bufio.NewReader(response.Body); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("the updates of %s ended: %w", path, err)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		select {
		case all <- event{data, time.Now()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
