package main

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/fencedlock/fencedlock/fence/fencehttp"
)

// The Transport puts the token into the header, where the context of a request carries a grant.
var web = &http.Client{Transport: fencehttp.Transport{}}

// put writes a file. It knows nothing of locks: what it has to send with the request is in ctx.
func put(ctx context.Context, url, text string) (resp *http.Response, answer string, err error) {
	return send(ctx, http.MethodPut, url, text)
}

func get(ctx context.Context, url string) (text string, err error) {
	_, text, err = send(ctx, http.MethodGet, url, "")
	return text, err
}

func send(ctx context.Context, method, url, text string) (resp *http.Response, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(text))
	if err != nil {
		return nil, "", err
	}
	if resp, err = web.Do(r); err != nil {
		return nil, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read to its end
	body, err := io.ReadAll(resp.Body)
	return resp, strings.TrimSpace(string(body)), err
}
